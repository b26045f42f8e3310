//! Contours of a function of two variables: marching squares on a grid.
//!
//! The grid is surrounded by a border of values below every level, at the coordinates of its outermost points. So every contour is
//! a closed ring: where the function is at or above the level up to the edge, the ring follows the edge.
//!
//! Values may be minus infinity, for "below every level"; the contour then goes through the point that is not. Not NaN.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A point in the coordinates of the grid.
pub(crate) type Point = (f64, f64);

/// Values at the points of a rectangular grid.
pub(crate) struct Grid {
    x: Vec<f64>,
    y: Vec<f64>,
    /// Row by row: the one of the lowest `y` first.
    values: Vec<f64>,
}

/// Side of a cell that a contour crosses: from the grid point with these numbers (the border has 0) to the right, or up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    column: usize,
    row: usize,
    is_upwards: bool,
}

impl Grid {
    /// The function at `columns` × `rows` points, at least 2 × 2.
    pub(crate) fn of(
        x: RangeInclusive<f64>,
        columns: usize,
        y: RangeInclusive<f64>,
        rows: usize,
        function: impl Fn(f64, f64) -> f64,
    ) -> Grid {
        let spread = |range: &RangeInclusive<f64>, count: usize| -> Vec<f64> {
            let (from, to, steps) = (*range.start(), *range.end(), count - 1);
            (0..count).map(|at| if at == steps { to } else { from + (to - from) * at as f64 / steps as f64 }).collect()
        };
        let (x, y) = (spread(&x, columns), spread(&y, rows));
        let values = y.iter().flat_map(|&y| x.iter().map(move |&x| (x, y))).map(|(x, y)| function(x, y)).collect();
        Grid { x, y, values }
    }

    /// The lowest and the highest finite value; `None` if there is none.
    pub(crate) fn extremes(&self) -> Option<(f64, f64)> {
        let finite = || self.values.iter().copied().filter(|value| value.is_finite());
        Some((finite().reduce(f64::min)?, finite().reduce(f64::max)?))
    }

    /// Whether some values are minus infinity.
    pub(crate) fn has_gaps(&self) -> bool {
        self.values.contains(&f64::NEG_INFINITY)
    }

    /// Rings around where the function is at or above the level. The inside is on their left; so a hole's ring runs clockwise.
    pub(crate) fn rings(&self, level: f64) -> Vec<Vec<Point>> {
        let mut next: BTreeMap<Side, Side> = BTreeMap::new();
        for row in 0..=self.y.len() {
            for column in 0..=self.x.len() {
                for (from, to) in self.crossings(column, row, level) {
                    next.insert(from, to);
                }
            }
        }
        let mut rings = Vec::new();
        while let Some((first, mut side)) = next.pop_first() {
            let mut ring = vec![self.crossing(first, level)];
            while side != first {
                ring.push(self.crossing(side, level));
                // Each side belongs to two cells: where one contour ends, the neighbour's begins.
                side = next.remove(&side).unwrap_or(first);
            }
            ring.dedup();
            rings.push(ring);
        }
        rings
    }

    /// The parts of the rings that do not follow the edge of the grid.
    pub(crate) fn lines(&self, level: f64) -> Vec<Vec<Point>> {
        let mut lines = Vec::new();
        for mut ring in self.rings(level) {
            let count = ring.len();
            match (0..count).find(|&at| self.follows_edge(ring[at], ring[(at + 1) % count])) {
                Some(at) => ring.rotate_left((at + 1) % count),
                None => ring.push(ring[0]),
            }
            let mut line = vec![ring[0]];
            for pair in ring.windows(2) {
                if self.follows_edge(pair[0], pair[1]) {
                    lines.push(std::mem::take(&mut line));
                }
                line.push(pair[1]);
            }
            lines.push(line);
        }
        lines.retain(|line| line.len() > 1);
        lines
    }

    fn follows_edge(&self, from: Point, to: Point) -> bool {
        let at = |one: f64, other: f64, all: &[f64]| one == other && (one == all[0] || one == all[all.len() - 1]);
        at(from.0, to.0, &self.x) || at(from.1, to.1, &self.y)
    }

    /// Value at a point with the border counted: from 0 to the number of points and one more.
    fn value(&self, column: usize, row: usize) -> f64 {
        let (columns, rows) = (self.x.len(), self.y.len());
        let is_inside = (1..=columns).contains(&column) && (1..=rows).contains(&row);
        if is_inside { self.values[(row - 1) * columns + column - 1] } else { f64::NEG_INFINITY }
    }

    fn point(&self, column: usize, row: usize) -> Point {
        let at = |number: usize, all: &[f64]| all[number.clamp(1, all.len()) - 1];
        (at(column, &self.x), at(row, &self.y))
    }

    /// Where contours go through a cell: from which side to which.
    fn crossings(&self, column: usize, row: usize, level: f64) -> Vec<(Side, Side)> {
        // Counterclockwise, each side beginning at the corner of its number.
        let corners = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)];
        let sides = [
            Side { column, row, is_upwards: false },
            Side { column: column + 1, row, is_upwards: true },
            Side { column, row: row + 1, is_upwards: false },
            Side { column, row, is_upwards: true },
        ];
        let values = corners.map(|(column, row)| self.value(column, row));
        let above = values.map(|value| value >= level);
        let leaves = |side: usize| above[side] && !above[(side + 1) % 4];
        let enters = |side: usize| !above[side] && above[(side + 1) % 4];
        let is_saddle = above[0] == above[2] && above[1] == above[3] && above[0] != above[1];
        let is_middle_above = values.iter().sum::<f64>() / 4.0 >= level;
        let from_leaving = |side: usize| {
            let to = match is_saddle {
                false => (0..4).find(|&other| enters(other))?,
                // A bridge goes through the middle, or a valley: the contour cuts off the corner after the side, or before it.
                true => (side + if is_middle_above { 1 } else { 3 }) % 4,
            };
            Some((sides[side], sides[to]))
        };
        (0..4).filter(|&side| leaves(side)).filter_map(from_leaving).collect()
    }

    /// Where on a side the function reaches the level, if it is linear between points.
    fn crossing(&self, side: Side, level: f64) -> Point {
        let Side { column, row, is_upwards } = side;
        let other = if is_upwards { (column, row + 1) } else { (column + 1, row) };
        let (value, other_value) = (self.value(column, row), self.value(other.0, other.1));
        let (from, to) = (self.point(column, row), self.point(other.0, other.1));
        let part = match () {
            () if value == f64::NEG_INFINITY => 1.0,
            () if other_value == f64::NEG_INFINITY => 0.0,
            () => (level - value) / (other_value - value),
        };
        let between = |from: f64, to: f64| if from == to { from } else { from + (to - from) * part };
        (between(from.0, to.0), between(from.1, to.1))
    }
}

/// The line with fewer points, none of which was further from it than `tolerance` (Ramer, Douglas, Peucker). Distances
/// are measured after division by `unit`.
pub(crate) fn simplified(line: &[Point], unit: Point, tolerance: f64) -> Vec<Point> {
    let (Some(&first), Some(&last)) = (line.first(), line.last()) else {
        return Vec::new();
    };
    let scaled = |point: Point| (point.0 / unit.0, point.1 / unit.1);
    let (from, to) = (scaled(first), scaled(last));
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    let distance = |point: Point| {
        let (px, py) = (scaled(point).0 - from.0, scaled(point).1 - from.1);
        if length == 0.0 { px.hypot(py) } else { (dx * py - dy * px).abs() / length }
    };
    let inner = 1..line.len() - 1;
    let farthest = inner.map(|at| (at, distance(line[at]))).max_by(|one, other| one.1.total_cmp(&other.1));
    match farthest {
        Some((at, far)) if far > tolerance => {
            let mut points = simplified(&line[..=at], unit, tolerance);
            points.pop();
            points.extend(simplified(&line[at..], unit, tolerance));
            points
        }
        _ if line.len() > 1 => vec![first, last],
        _ => vec![first],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(function: impl Fn(f64, f64) -> f64) -> Grid {
        Grid::of(-2.0..=2.0, 41, -2.0..=2.0, 41, function)
    }

    /// Positive where the inside is on the left.
    fn signed_area(ring: &[Point]) -> f64 {
        let next = ring[1..].iter().chain(&ring[..1]);
        ring.iter().zip(next).map(|(a, b)| (a.0 * b.1 - b.0 * a.1) / 2.0).sum()
    }

    #[test]
    fn a_circle_is_found_where_it_is() {
        let grid = grid(|x, y| 1.0 - x.hypot(y));
        let rings = grid.rings(0.0);
        assert_eq!(rings.len(), 1);
        for &(x, y) in &rings[0] {
            assert!((x.hypot(y) - 1.0).abs() < 0.005, "{x}, {y}");
        }
        assert!((signed_area(&rings[0]).abs() - std::f64::consts::PI).abs() < 0.02);
        // It does not touch the edge, so it is one line, and closed.
        let lines = grid.lines(0.0);
        assert_eq!((lines.len(), lines[0].first()), (1, lines[0].last()));
    }

    #[test]
    fn a_hole_runs_the_other_way() {
        let rings = grid(|x, y| 0.5 - (x.hypot(y) - 1.0).abs()).rings(0.0);
        let mut areas: Vec<f64> = rings.iter().map(|ring| signed_area(ring)).collect();
        areas.sort_by(f64::total_cmp);
        // Radii 0.5 and 1.5.
        assert_eq!(areas.len(), 2);
        assert!((areas[0] + std::f64::consts::PI * 0.25).abs() < 0.05, "{areas:?}");
        assert!((areas[1] - std::f64::consts::PI * 2.25).abs() < 0.05, "{areas:?}");
    }

    #[test]
    fn a_slope_ends_at_the_edges() {
        let grid = grid(|x, y| x + 2.0 * y);
        let rings = grid.rings(1.0);
        assert_eq!(rings.len(), 1);
        for corner in [(2.0, 2.0), (-2.0, 2.0)] {
            assert!(rings[0].contains(&corner), "{rings:?}");
        }
        assert!((signed_area(&rings[0]).abs() - 6.0).abs() < 1e-9);
        let lines = grid.lines(1.0);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].iter().all(|&(x, y)| (x + 2.0 * y - 1.0).abs() < 1e-9));
        let mut ends = [lines[0][0], lines[0][lines[0].len() - 1]];
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!((ends[0].0 + 2.0).abs() < 1e-9 && (ends[1].0 - 2.0).abs() < 1e-9, "{ends:?}");
    }

    #[test]
    fn everything_and_nothing() {
        let flat = grid(|_, _| 1.0);
        assert!((signed_area(&flat.rings(1.0)[0]).abs() - 16.0).abs() < 1e-9);
        assert!(flat.lines(1.0).is_empty());
        assert!(flat.rings(1.1).is_empty() && flat.lines(1.1).is_empty());
        assert_eq!(flat.extremes(), Some((1.0, 1.0)));
        let nothing = grid(|_, _| f64::NEG_INFINITY);
        assert!(nothing.rings(-1e300).is_empty());
        assert_eq!(nothing.extremes(), None);
        assert!(nothing.has_gaps() && !flat.has_gaps());
    }

    #[test]
    fn next_to_minus_infinity_the_contour_goes_through_points() {
        let grid = grid(|x, _| if x < 0.05 { f64::NEG_INFINITY } else { x });
        let lines = grid.lines(0.0);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].iter().all(|point| (point.0 - 0.1).abs() < 1e-9), "{lines:?}");
    }

    #[test]
    fn a_saddle_is_a_bridge_or_a_valley_as_its_middle_tells() {
        let saddle = |middle: f64| Grid::of(0.0..=1.0, 2, 0.0..=1.0, 2, move |x, y| if x == y { 1.0 } else { middle });
        // Middle (1 + m) / 2, level 0.5.
        assert_eq!(saddle(0.2).rings(0.5).len(), 1);
        assert_eq!(saddle(-0.2).rings(0.5).len(), 2);
    }

    #[test]
    fn straight_lines_need_two_points() {
        let straight: Vec<Point> = (0..100).map(|at| (f64::from(at), 3.0 * f64::from(at))).collect();
        assert_eq!(simplified(&straight, (1.0, 1.0), 1e-6), [straight[0], straight[99]]);
        let arc: Vec<Point> = (0..=1000).map(|at| (f64::from(at) / 1000.0 * 1.5).sin_cos()).collect();
        let few = simplified(&arc, (1.0, 1.0), 1e-3);
        assert!((9..40).contains(&few.len()), "{}", few.len());
        // Nowhere further away than the tolerance.
        for point in &arc {
            let near = few.windows(2).any(|pair| {
                let (dx, dy) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
                let along = ((point.0 - pair[0].0) * dx + (point.1 - pair[0].1) * dy) / (dx * dx + dy * dy);
                let at = along.clamp(0.0, 1.0);
                (pair[0].0 + at * dx - point.0).hypot(pair[0].1 + at * dy - point.1) <= 1e-3 + 1e-12
            });
            assert!(near, "{point:?}");
        }
        assert_eq!(simplified(&[], (1.0, 1.0), 1.0), []);
        assert_eq!(simplified(&[(1.0, 2.0)], (1.0, 1.0), 1.0), [(1.0, 2.0)]);
    }
}
