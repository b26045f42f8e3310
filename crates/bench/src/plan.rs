//! The interleaved comparison: in each round every workload runs on all file systems directly after one another, and the
//! order of the file systems rotates, so that what else the machine does hits all of them.

use std::time::{Duration, Instant};

use crate::cpu;
use crate::error::Result;
use crate::measure::Sample;
use crate::peer::{Kind, Peer, drop_caches};
use crate::workload::{Ground, Scale, Workload};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads, in the order of [`Workload::ALL`]; each needs what the ones before it left.
    pub workloads: Vec<Workload>,
    /// The workloads whose results are wanted; the others run without being shown.
    pub shown: Vec<Workload>,
    /// How much each does.
    pub scale: Scale,
    /// Number of rounds.
    pub rounds: u64,
    /// Seed of the order of the requests.
    pub seed: u64,
}

/// The samples of one workload: for each file system, one per round.
#[derive(Clone, Debug)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// By file system, in the order in which they were given.
    pub samples: Vec<(Kind, Vec<Sample>)>,
}

impl Row {
    /// The rates of one file system, one per round; empty if it was not measured.
    pub fn rates(&self, kind: Kind) -> Vec<f64> {
        self.of(kind).iter().map(|sample| sample.rate(self.workload.unit())).collect()
    }

    /// The samples of one file system.
    pub fn of(&self, kind: Kind) -> &[Sample] {
        self.samples.iter().find(|(k, _)| *k == kind).map_or(&[], |(_, samples)| samples)
    }
}

/// Runs the plan on mounted file systems. `progress` is called before each measurement.
pub fn execute(plan: &Plan, peers: &mut [Peer], mut progress: impl FnMut(u64, Workload, Kind)) -> Result<Vec<Row>> {
    let mut grounds: Vec<Ground> = peers.iter().map(|p| Ground::new(p.root(), plan.scale, plan.seed)).collect();
    let empty_row = |workload: &Workload| Row {
        workload: *workload,
        samples: peers.iter().map(|peer| (peer.kind(), Vec::new())).collect(),
    };
    let mut rows: Vec<Row> = plan.workloads.iter().map(empty_row).collect();
    for round in 0..plan.rounds {
        for row in &mut rows {
            for turn in 0..peers.len() {
                let index = (turn + round as usize) % peers.len();
                progress(round, row.workload, peers[index].kind());
                let sample = measure(&mut peers[index], &mut grounds[index], row.workload, round)?;
                row.samples[index].1.push(sample);
            }
        }
    }
    rows.retain(|row| plan.shown.contains(&row.workload));
    Ok(rows)
}

fn measure(peer: &mut Peer, ground: &mut Ground, workload: Workload, round: u64) -> Result<Sample> {
    ground.prepare(workload, round)?;
    peer.settle()?;
    if workload.starts_cold() {
        peer.unmount()?;
        drop_caches()?;
        peer.mount()?;
    }
    let daemon_before = peer.daemon_cpu();
    let (cpu_before, start) = (cpu::own(), Instant::now());
    let amount = ground.run(workload, round)?;
    let (wall, application_cpu) = (start.elapsed(), cpu::own().saturating_sub(cpu_before));
    let daemon_cpu = peer.daemon_cpu().map(|after| after.saturating_sub(daemon_before.unwrap_or(Duration::ZERO)));
    peer.settle()?;
    Ok(Sample { requests: amount.requests, bytes: amount.bytes, wall, application_cpu, daemon_cpu })
}
