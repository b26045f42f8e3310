//! What must hold for every machine, mode and goal.

use holdfast_integrity::{Algorithm, Protection};
use holdfast_reliability::{
    ChecksumData, Config, Costs, Disk, Goal, Machine, Memory, Mode, Model, Residency, recommend, strength,
};
use proptest::prelude::*;

fn models() -> impl Strategy<Value = Model> {
    let machine = (12.0..22.0, 6.0..22.0, 0.0..100.0).prop_map(|(memory, disk, flush_s)| Machine {
        memory: Memory::of_index(memory).unwrap(),
        disk: Disk::of_index(disk).unwrap(),
        flush_s,
    });
    let data = prop::sample::select(ChecksumData::ALL.to_vec());
    let goal = prop::sample::select(Goal::ALL.to_vec());
    (machine, data, goal).prop_map(|(machine, data, goal)| Model { machine, data, goal })
}

fn modes() -> impl Strategy<Value = Mode> {
    let end_to_end = Algorithm::ALL.map(Mode::EndToEnd);
    let others = [Mode::None, Mode::Disk, Mode::Static, Mode::StaticStrong, Mode::Dynamic, Mode::Uniform];
    prop::sample::select([&end_to_end[..], &others[..]].concat())
}

/// From microseconds to millions of years.
fn residencies() -> impl Strategy<Value = f64> {
    (-6.0..14.0).prop_map(|exponent: f64| 10f64.powf(exponent))
}

/// Rounding in sums of logarithms.
const ROUNDING: f64 = 1e-9;

proptest! {
    #[test]
    fn longer_in_memory_is_never_better(model in models(), mode in modes(), at in residencies(), factor in 1.0..1e6f64) {
        let (early, late) = (at, at * factor);
        let switched = mode == Mode::Dynamic && model.t_switch().covers(early) && !model.t_switch().covers(late);
        prop_assert!(switched || model.score(mode, late) <= model.score(mode, early) + ROUNDING);
    }

    #[test]
    fn better_hardware_is_never_worse(model in models(), mode in modes(), at in residencies(), by in 0.0..3.0f64) {
        // With `dynamic`, better memory means a later switch, which lowers the score in between.
        prop_assume!(mode != Mode::Dynamic);
        let mut better = model;
        better.machine.memory = Memory::of_index(model.machine.memory.index() + by).unwrap();
        prop_assert!(better.score(mode, at) >= model.score(mode, at) - ROUNDING);
        better.machine.disk = Disk::of_index(model.machine.disk.index() + by).unwrap();
        prop_assert!(better.score(mode, at) >= model.score(mode, at) - ROUNDING);
        better.machine.flush_s = 0.0;
        prop_assert!(better.score(mode, at) >= model.score(mode, at) - ROUNDING);
    }

    #[test]
    fn more_protection_is_never_worse(model in models(), at in residencies()) {
        let xor = Mode::EndToEnd(Algorithm::Xor64);
        for (weak, strong) in [
            (Mode::None, Mode::Disk),
            (Mode::None, xor),
            (Mode::Disk, Mode::Static),
            (xor, Mode::Static),
            (Mode::Static, Mode::Dynamic),
            (Mode::Dynamic, Mode::StaticStrong),
            (Mode::StaticStrong, Mode::EndToEnd(Algorithm::Fletcher256)),
        ] {
            prop_assert!(model.score(weak, at) <= model.score(strong, at) + ROUNDING, "{weak} and {strong}");
        }
    }

    #[test]
    fn a_checksum_that_sees_more_never_scores_lower(model in models(), at in residencies()) {
        for one in Algorithm::ALL {
            for other in Algorithm::ALL {
                let (weak, strong) = (strength(one, model.data), strength(other, model.data));
                if weak.hamming_distance <= strong.hamming_distance && weak.unseen_fraction >= strong.unseen_fraction {
                    let scores = [one, other].map(|algorithm| model.score(Mode::EndToEnd(algorithm), at));
                    prop_assert!(scores[0] <= scores[1] + ROUNDING, "{one} and {other}: {scores:?}");
                }
            }
        }
    }

    #[test]
    fn a_goal_is_kept_up_to_the_residency_that_is_given(model in models(), mode in modes(), at in residencies()) {
        for goal in Goal::ALL {
            let kept = model.keeps_goal(mode, goal);
            let meets = |residency_s| model.undetected(mode, residency_s) <= goal.probability();
            match kept {
                Residency::Never => prop_assert!(!meets(0.0)),
                Residency::UpTo(limit_s) => {
                    prop_assert!(meets(limit_s) && meets(limit_s * 0.5));
                    prop_assert!(!meets(limit_s * (1.0 + 1e-12)), "{mode}, {goal}: more than {limit_s} s");
                }
                Residency::Always => prop_assert!(meets(at) && meets(f64::INFINITY)),
            }
            prop_assert!(Goal::ALL.iter().all(|easier| *easier > goal || model.keeps_goal(mode, *easier) >= kept));
        }
    }

    #[test]
    fn what_is_recommended_keeps_the_goal_and_nothing_cheaper_does(model in models(), uptime_s in residencies()) {
        let measured = recommend(&model, Costs::Measured, uptime_s);
        let recommended = recommend(&model, Costs::Published, uptime_s);
        let keeps = |mode| model.keeps_goal(mode, model.goal).covers(uptime_s);
        prop_assert!(keeps(recommended.mode));
        prop_assert_eq!(model.keeps_goal(Mode::Uniform, model.goal), Residency::Always);
        prop_assert_eq!(recommended.t_switch_s.is_some(), recommended.mode == Mode::Dynamic);
        match recommended.mode {
            Mode::None => {}
            Mode::Disk => prop_assert!(!keeps(Mode::None)),
            Mode::Static => prop_assert!(!keeps(Mode::Disk)),
            Mode::Dynamic => prop_assert!(!keeps(Mode::Static)),
            // A switch that is never would be the same.
            Mode::StaticStrong => prop_assert!(model.t_switch() == Residency::Never || !keeps(Mode::Dynamic)),
            _ => prop_assert!(!keeps(Mode::Static) && !keeps(Mode::Dynamic) && !keeps(Mode::StaticStrong)),
        }
        // Neither xor nor a switch saves anything here.
        let needs_memory_sums = !matches!(recommended.mode, Mode::None | Mode::Disk);
        prop_assert_eq!(measured.mode, if needs_memory_sums { Mode::Uniform } else { recommended.mode });
        prop_assert!(keeps(measured.mode) && measured.t_switch_s.is_none());
    }

    #[test]
    fn a_store_that_is_told_what_is_chosen_keeps_what_the_mode_keeps(model in models(), mode in modes(), at in residencies()) {
        let told = model.chosen(mode);
        let (keeps, as_told) = (model.keeps_goal(mode, model.goal), model.keeps_as_told(told));
        match (mode, model.t_switch()) {
            // Not xor, which the mode of the tables has.
            (Mode::Static, Residency::Never) => {
                prop_assert_eq!(told, Protection::Static { strong: true });
                prop_assert!(keeps == Residency::Never);
            }
            (Mode::Dynamic, Residency::Never) => prop_assert_eq!(told, Protection::Dynamic { t_switch_s: 0 }),
            // Between the whole seconds and what they were before, what comes after the switch may be not enough.
            (Mode::Dynamic, Residency::UpTo(seconds)) => {
                prop_assert!(as_told.covers(at) || !keeps.covers(at) || seconds.floor() < at && at <= seconds);
            }
            _ => prop_assert_eq!(as_told, keeps),
        }
    }
}

#[test]
fn the_papers_advice_comes_out() {
    // z2fs §III-C: static with ECC, where seven weeks are long enough; dynamic without; a strong checksum throughout with the worst.
    let model = |config: Config, data| Model { machine: config.machine(), data, goal: Goal::Zettabyte };
    const MONTH_S: f64 = 30.0 * 86400.0;
    for data in [ChecksumData::Published, ChecksumData::Measured] {
        for (config, mode) in [
            // Our Fletcher is weaker than the one that the paper counts with.
            (Config::LowEnd, if data == ChecksumData::Published { Mode::StaticStrong } else { Mode::Uniform }),
            (Config::Consumer, Mode::Dynamic),
            (Config::Enterprise, Mode::Static),
            (Config::Server, Mode::Static),
        ] {
            assert_eq!(recommend(&model(config, data), Costs::Published, MONTH_S).mode, mode, "{config}, {data}");
        }
    }
    let low_end = model(Config::LowEnd, ChecksumData::Published);
    assert_eq!(low_end.chosen(Mode::Static), Protection::Static { strong: true });
    assert_eq!(low_end.keeps_as_told(Protection::Dynamic { t_switch_s: 92 }), Residency::Never);
    // For a year, xor is not enough, and without ECC neither is the Fletcher that we have.
    let year = |config| recommend(&model(config, ChecksumData::Measured), Costs::Published, 365.0 * 86400.0).mode;
    assert_eq!([Config::Enterprise, Config::Consumer].map(year), [Mode::Dynamic, Mode::Uniform]);
    // Where little is asked for, little is enough.
    let easy = Model { goal: Goal::Terabyte, ..model(Config::Server, ChecksumData::Measured) };
    assert_eq!(recommend(&easy, Costs::Published, 3600.0).mode, Mode::None);
    assert_eq!(recommend(&easy, Costs::Measured, 3600.0).mode, Mode::None);
}
