//! Figures 2 to 5 of the paper, computed anew, as SVG.
//!
//! Contour plots are painted from the lowest level up, each region over the one that it lies in: all of these functions grow with both
//! indices, so that no region has a hole.

use crate::checksum::ChecksumData;
use crate::contour::{Grid, Point, simplified};
use crate::device::{Disk, Memory};
use crate::goal::Goal;
use crate::machine::{Config, FLUSH_S, Machine};
use crate::mode::Mode;
use crate::model::Model;
use crate::residency::Residency;
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// A figure of z2fs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Figure {
    /// 2: scores of NCFS, ZFS and both E²ZFS, by memory and disk.
    Scores,
    /// 3: scores of Z²FS (static), by memory and disk.
    StaticScores,
    /// 4: scores of Z²FS by residency, for three memories.
    Residencies,
    /// 5: t_switch of Z²FS (dynamic), by memory and disk.
    Switching,
}

impl Figure {
    /// All, by number.
    pub const ALL: [Figure; 4] = [Figure::Scores, Figure::StaticScores, Figure::Residencies, Figure::Switching];

    /// Its number in the paper.
    pub const fn number(self) -> u8 {
        match self {
            Figure::Scores => 2,
            Figure::StaticScores => 3,
            Figure::Residencies => 4,
            Figure::Switching => 5,
        }
    }

    /// The figure with this number.
    pub fn of_number(number: u8) -> Option<Figure> {
        Figure::ALL.into_iter().find(|figure| figure.number() == number)
    }
}

/// A figure could not be drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the figure cannot be drawn: {0}")]
pub struct DrawError(String);

pub(crate) fn failed(error: impl Display) -> DrawError {
    DrawError(error.to_string())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Width and height of one panel, in pixels.
const PANEL: (u32, u32) = (480, 400);
pub(crate) const FONT: &str = "sans-serif";
pub(crate) const INK: RGBColor = RGBColor(20, 20, 20);
const GOAL_INK: RGBColor = RGBColor(190, 30, 30);

/// Memory and disk indices of contour plots: from z2fs §II-B, and a little more for the marks at the exact rates.
const MEMORY_INDICES: RangeInclusive<f64> = 13.1..=19.1;
const DISK_INDICES: RangeInclusive<f64> = 9.6..=20.4;
/// Points of the grid in each direction.
const GRID_POINTS: usize = 113;
/// Most levels in a contour plot.
const LEVELS_MAX: f64 = 9.0;
/// Largest error of a drawn line, as a part of the panel.
const TOLERANCE: f64 = 0.0007;
/// Labels are no closer to each other, in parts of the plot.
const LABELS_APART: f64 = 0.06;
/// Residency for which scores are, in seconds: z2fs §II-D.
const RESIDENCY_S: f64 = 1.0;
/// Residencies of figure 4, in seconds.
const RESIDENCIES_S: RangeInclusive<f64> = 0.0..=300.0;
const RESIDENCY_SCORES: RangeInclusive<f64> = 0.0..=30.0;

/// The figure as an SVG document.
pub fn draw(figure: Figure, data: ChecksumData, goal: Goal) -> Result<String, DrawError> {
    let panels = if matches!(figure, Figure::Scores | Figure::Residencies) { (2, 2) } else { (1, 1) };
    let mut svg = String::new();
    {
        let size = (PANEL.0 * panels.0, PANEL.1 * panels.1);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let areas = root.split_evenly((panels.1 as usize, panels.0 as usize));
        let model = |machine| Model { machine, data, goal };
        match figure {
            Figure::Scores => {
                let modes = [Mode::None, Mode::Disk, Mode::EndToEnd(Mode::WEAK), Mode::EndToEnd(Mode::STRONG)];
                for ((area, mode), letter) in areas.iter().zip(modes).zip('a'..) {
                    let title = format!("({letter}) {}", mode.stands_for());
                    score_contours(area, &title, goal, |machine| model(machine).score(mode, RESIDENCY_S))?;
                }
            }
            Figure::StaticScores => {
                let title = Mode::Static.stands_for();
                score_contours(&areas[0], &title, goal, |machine| model(machine).score(Mode::Static, RESIDENCY_S))?;
            }
            Figure::Residencies => {
                let panels = [
                    (Config::LowEnd, Mode::Static, "λ max"),
                    (Config::Consumer, Mode::Static, "λ mid"),
                    (Config::Enterprise, Mode::Static, "λ min"),
                    (Config::Consumer, Mode::Dynamic, "λ mid"),
                ];
                for ((area, (config, mode, rate)), letter) in areas.iter().zip(panels).zip('a'..) {
                    let title = format!("({letter}) {}, {rate}, config {}", mode.stands_for(), config.number());
                    residency_curve(area, &title, &model(config.machine()), mode)?;
                }
            }
            Figure::Switching => {
                let title = "log10 of t_switch in s; darkest: under 1 s, or never";
                let value = |machine| match model(machine).t_switch() {
                    Residency::UpTo(seconds) if seconds >= 1.0 => seconds.log10(),
                    Residency::UpTo(_) | Residency::Never => f64::NEG_INFINITY,
                    // Of no goal: xor misses one pair of flips in 64.
                    Residency::Always => f64::MAX,
                };
                contours(&areas[0], title, None, value)?;
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn score_contours(area: &Area, title: &str, goal: Goal, score: impl Fn(Machine) -> f64) -> Result<(), DrawError> {
    contours(area, title, Some(goal.score()), score)
}

/// A contour plot by the indices of memory and disk, darker where the value is lower. `marked` is a level drawn in another colour.
fn contours(area: &Area, title: &str, marked: Option<f64>, value: impl Fn(Machine) -> f64) -> Result<(), DrawError> {
    let grid = by_indices(value);
    let unit = (length(&MEMORY_INDICES), length(&DISK_INDICES));
    let mut chart = chart(area, title, MEMORY_INDICES, DISK_INDICES)?;
    let levels = levels(&grid);
    let shade = |band: usize| {
        let light = 95 + (150 * band / levels.len().max(1)) as u8;
        RGBColor(light, light, light)
    };
    let (x, y) = (MEMORY_INDICES, DISK_INDICES);
    let all = [(*x.start(), *y.start()), (*x.end(), *y.end())];
    chart.draw_series([Rectangle::new(all, shade(0).filled())]).map_err(failed)?;
    for (&level, band) in levels.iter().zip(1..) {
        let rings = grid.rings(level);
        let polygons = rings.iter().map(|ring| Polygon::new(simplified(ring, unit, TOLERANCE), shade(band).filled()));
        chart.draw_series(polygons).map_err(failed)?;
    }
    let plain = levels.iter().filter(|level| marked.is_none_or(|marked| (*level - marked).abs() > 0.4));
    let drawn = plain.map(|&level| (level, INK, 1)).chain(marked.map(|level| (level, GOAL_INK, 2)));
    let mut labels = Vec::new();
    for (level, ink, width) in drawn {
        for line in grid.lines(level) {
            let line = simplified(&line, unit, TOLERANCE);
            let label = number(level);
            // Not all labels in a row: that of the goal may be close to another.
            let at = beside(&line, unit, if ink == INK { 0.5 } else { 0.25 }, &labels);
            labels.push(at);
            chart.draw_series([PathElement::new(line, ink.stroke_width(width))]).map_err(failed)?;
            let half_width = 4 * label.chars().count() as i32 + 1;
            let beneath = Rectangle::new([(-half_width, -7), (half_width, 7)], WHITE.mix(0.75).filled());
            let labelled = EmptyElement::at(at) + beneath + Text::new(label, (0, 0), text(13, ink));
            chart.draw_series([labelled]).map_err(failed)?;
        }
    }
    axes(&mut chart, "memory reliability index, −log10 λ", "disk reliability index, −log10 UBER")?;
    for config in Config::ALL {
        let Machine { memory, disk, .. } = config.machine();
        let at = (memory.index(), disk.index());
        chart.draw_series([Cross::new(at, 5, INK.stroke_width(2))]).map_err(failed)?;
        let beside = EmptyElement::at(at) + Text::new(config.number().to_string(), (-10, -9), text(14, INK));
        chart.draw_series([beside]).map_err(failed)?;
    }
    Ok(())
}

/// A value at all memories and disks of a contour plot.
fn by_indices(value: impl Fn(Machine) -> f64) -> Grid {
    Grid::of(MEMORY_INDICES, GRID_POINTS, DISK_INDICES, GRID_POINTS, |memory, disk| {
        match (Memory::of_index(memory), Disk::of_index(disk)) {
            (Ok(memory), Ok(disk)) => value(Machine { memory, disk, flush_s: FLUSH_S }),
            _ => f64::NEG_INFINITY,
        }
    })
}

/// Multiples of the smallest step that gives no more than so many levels. Where some values are minus infinity, the lowest level
/// parts them from the others.
fn levels(grid: &Grid) -> Vec<f64> {
    let Some((lowest, highest)) = grid.extremes() else {
        return Vec::new();
    };
    let steps = [0.5, 1.0, 2.0, 4.0, 5.0, 10.0, 20.0];
    let step = steps.into_iter().find(|step| (highest - lowest) / step <= LEVELS_MAX).unwrap_or(50.0);
    let first = if grid.has_gaps() { (lowest / step).floor() } else { (lowest / step).ceil() };
    (0..=(highest / step - first) as u32).map(|at| (first + f64::from(at)) * step).collect()
}

fn residency_curve(area: &Area, title: &str, model: &Model, mode: Mode) -> Result<(), DrawError> {
    let mut chart = chart(area, title, RESIDENCIES_S, RESIDENCY_SCORES)?;
    let curve = score_by_residency(model, mode);
    let goal = model.goal.score();
    let goal_line = vec![(*RESIDENCIES_S.start(), goal), (*RESIDENCIES_S.end(), goal)];
    chart.draw_series([PathElement::new(goal_line, GOAL_INK.stroke_width(1))]).map_err(failed)?;
    let label = format!("red: {} goal, {goal:.2}", model.goal);
    chart.draw_series([Text::new(label, (240.0, 3.0), text(13, GOAL_INK))]).map_err(failed)?;
    chart.draw_series([PathElement::new(curve, INK.stroke_width(2))]).map_err(failed)?;
    axes(&mut chart, "residency in seconds", "reliability score")
}

/// The curve of figure 4.
fn score_by_residency(model: &Model, mode: Mode) -> Vec<Point> {
    let mut times: Vec<f64> = (0..=600).map(|at| length(&RESIDENCIES_S) * f64::from(at) / 600.0).collect();
    if let Residency::UpTo(seconds) = model.t_switch() {
        // Both sides of the jump.
        times.extend([seconds, seconds * (1.0 + 1e-9)].into_iter().filter(|time| RESIDENCIES_S.contains(time)));
        times.sort_by(f64::total_cmp);
    }
    let score = |time: &f64| (*time, model.score(mode, *time).min(*RESIDENCY_SCORES.end()));
    let curve: Vec<Point> = times.iter().map(score).collect();
    simplified(&curve, (length(&RESIDENCIES_S), length(&RESIDENCY_SCORES)), TOLERANCE)
}

fn chart<'a, 'b>(
    area: &'b Area<'a>,
    title: &str,
    x: RangeInclusive<f64>,
    y: RangeInclusive<f64>,
) -> Result<Chart<'a, 'b>, DrawError> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, (FONT, 16).into_font().color(&INK)).margin(8).margin_right(16);
    builder.x_label_area_size(44).y_label_area_size(52);
    builder.build_cartesian_2d(*x.start()..*x.end(), *y.start()..*y.end()).map_err(failed)
}

fn axes(chart: &mut Chart, x: &str, y: &str) -> Result<(), DrawError> {
    let mut mesh = chart.configure_mesh();
    mesh.disable_mesh().x_desc(x).y_desc(y).x_labels(7).y_labels(7).axis_style(INK);
    mesh.x_label_formatter(&|value| number(*value)).y_label_formatter(&|value| number(*value));
    mesh.label_style((FONT, 13)).axis_desc_style((FONT, 14));
    mesh.draw().map_err(failed)
}

pub(crate) fn text(size: u32, ink: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&ink).pos(Pos::new(HPos::Center, VPos::Center))
}

/// Without zeros after the point.
fn number(value: f64) -> String {
    let digits = format!("{value:.2}");
    digits.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn length(range: &RangeInclusive<f64>) -> f64 {
    range.end() - range.start()
}

/// The point at a part of a line's length, from 0 to 1.
fn along(line: &[Point], unit: Point, part: f64) -> Point {
    let step = |pair: &[Point]| ((pair[1].0 - pair[0].0) / unit.0).hypot((pair[1].1 - pair[0].1) / unit.1);
    let mut left = line.windows(2).map(step).sum::<f64>() * part;
    for pair in line.windows(2) {
        let length = step(pair);
        if length >= left && length > 0.0 {
            let part = left / length;
            return (pair[0].0 + (pair[1].0 - pair[0].0) * part, pair[0].1 + (pair[1].1 - pair[0].1) * part);
        }
        left -= length;
    }
    line[0]
}

/// The same, or as near to it as no label of another line lies.
fn beside(line: &[Point], unit: Point, part: f64, labels: &[Point]) -> Point {
    let is_free = |at: &Point| {
        labels.iter().all(|label| ((at.0 - label.0) / unit.0).hypot((at.1 - label.1) / unit.1) >= LABELS_APART)
    };
    let places = [0.0, 0.15, -0.15, 0.3, -0.3].map(|aside| along(line, unit, part + aside));
    places.into_iter().find(is_free).unwrap_or(places[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_contours_lie_apart() {
        let (unit, flat) = ((10.0, 2.0), [(0.0, 1.0), (10.0, 1.0)]);
        assert_eq!(beside(&flat, unit, 0.5, &[]), (5.0, 1.0));
        let taken = |x: f64| (10.0 * x, 1.0);
        assert_eq!(beside(&flat, unit, 0.5, &[taken(0.5)]), taken(0.65));
        assert_eq!(beside(&flat, unit, 0.5, &[taken(0.5), taken(0.65)]), taken(0.35));
        assert_eq!(beside(&flat, unit, 0.5, &[taken(0.5 + LABELS_APART)]), taken(0.5), "far enough");
        // Where there is no room it is where it would be.
        let all: Vec<Point> = (0..=100).map(|at| taken(f64::from(at) / 100.0)).collect();
        assert_eq!(beside(&flat, unit, 0.5, &all), taken(0.5));
    }

    fn published(machine: Machine) -> Model {
        Model { machine, data: ChecksumData::Published, goal: Goal::Zettabyte }
    }

    #[test]
    fn the_goal_of_figure_3_is_at_a_memory_index_of_13_7() {
        // z2fs §III-C.
        let grid = by_indices(|machine| published(machine).score(Mode::Static, RESIDENCY_S));
        let lines = grid.lines(Goal::Zettabyte.score());
        assert_eq!(lines.len(), 1);
        assert!(lines[0].iter().all(|point| (point.0 - 13.7).abs() < 0.05), "{lines:?}");
        let disks = lines[0].iter().map(|point| point.1);
        assert_eq!(disks.clone().fold(0.0, f64::max), *DISK_INDICES.end());
        assert_eq!(disks.fold(99.0, f64::min), *DISK_INDICES.start());
    }

    #[test]
    fn contours_go_where_the_model_has_their_level() {
        for mode in Mode::ALL {
            let score = |machine| published(machine).score(mode, RESIDENCY_S);
            let grid = by_indices(score);
            // Not across the jump of `dynamic`, where neighbouring points have scores far apart.
            for level in levels(&grid).into_iter().filter(|_| mode != Mode::Dynamic) {
                for (memory, disk) in grid.lines(level).concat() {
                    let machine = Machine {
                        memory: Memory::of_index(memory).unwrap(),
                        disk: Disk::of_index(disk).unwrap(),
                        flush_s: FLUSH_S,
                    };
                    assert!((score(machine) - level).abs() < 0.05, "{mode}, {level}: {memory}, {disk}");
                }
            }
        }
    }

    #[test]
    fn no_region_has_a_hole() {
        let modes = [Mode::None, Mode::Disk, Mode::EndToEnd(Mode::WEAK), Mode::EndToEnd(Mode::STRONG), Mode::Static];
        for data in ChecksumData::ALL {
            for mode in modes {
                let grid = by_indices(|machine| Model { data, ..published(machine) }.score(mode, RESIDENCY_S));
                let levels = levels(&grid);
                assert!((2..=10).contains(&levels.len()), "{mode}: {levels:?}");
                assert!(levels.iter().all(|level| grid.rings(*level).len() == 1), "{mode}");
            }
        }
    }

    #[test]
    fn the_curve_of_figure_4_jumps_at_t_switch() {
        let curve = score_by_residency(&published(Config::Consumer.machine()), Mode::Dynamic);
        let jump = curve.windows(2).max_by(|one, other| (one[1].1 - one[0].1).total_cmp(&(other[1].1 - other[0].1)));
        let jump = jump.unwrap();
        assert!((jump[0].0 - 92.4).abs() < 0.1 && (jump[1].0 - jump[0].0) < 1e-3, "{jump:?}");
        assert!((jump[0].1 - Goal::Zettabyte.score()).abs() < 1e-6 && jump[1].1 > jump[0].1 + 0.5, "{jump:?}");
    }

    #[test]
    fn every_figure_is_a_small_document_for_all_data_and_goals() {
        for figure in Figure::ALL {
            assert_eq!(Figure::of_number(figure.number()), Some(figure));
            for data in ChecksumData::ALL {
                for goal in Goal::ALL {
                    let svg = draw(figure, data, goal).unwrap();
                    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                    assert!(svg.len() < 100 << 10, "{figure:?}: {} bytes", svg.len());
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{figure:?}");
                    let panels =
                        svg.matches("reliability index, −log10 λ").count() + svg.matches("residency in").count();
                    assert_eq!(panels, if matches!(figure, Figure::Scores | Figure::Residencies) { 4 } else { 1 });
                }
            }
        }
        assert_eq!(Figure::of_number(1), None);
    }
}
