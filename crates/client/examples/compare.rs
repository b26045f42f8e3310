//! What checksums cost: this interface against the plain calls, on a file in a mount.
//!
//! `cargo run --release -p holdfast-client --example compare -- FILE [ROUNDS [CALLS]]`. FILE is made, 32 MiB long. Every step does the same
//! places of it; steps are interleaved in rotating order; each figure is the median over the rounds of the time of a call, in
//! microseconds, and the median of its ratio to the plain call of the same round.

use holdfast_client::{Algorithm, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

const FILE_BYTES: usize = 32 << 20;
const SIZES: [usize; 4] = [4 << 10, 12 << 10, 128 << 10, 1020 << 10];
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Crc64Nvme, Algorithm::Xor64, Algorithm::Fletcher256];

#[repr(align(4096))]
struct Aligned([u8; SIZES[3]]);

type Files = Vec<File<std::fs::File>>;
type Step = (&'static str, fn(&Files, &mut [u8], u64));

const STEPS: [Step; 8] = [
    ("read, plain", |files, buffer, at| files[0].get_ref().read_exact_at(buffer, at).expect("a read")),
    ("read, crc64-nvme", |files, buffer, at| read(&files[0], buffer, at)),
    ("read, xor64", |files, buffer, at| read(&files[1], buffer, at)),
    ("read, fletcher256", |files, buffer, at| read(&files[2], buffer, at)),
    ("write, plain", |files, buffer, at| files[0].get_ref().write_all_at(buffer, at).expect("a write")),
    ("write, crc64-nvme", |files, buffer, at| write(&files[0], buffer, at)),
    ("write, xor64", |files, buffer, at| write(&files[1], buffer, at)),
    ("write, fletcher256", |files, buffer, at| write(&files[2], buffer, at)),
];

fn read(file: &File<std::fs::File>, buffer: &mut [u8], at: u64) {
    assert_eq!(file.read_at(buffer, at).expect("a read"), buffer.len());
}

fn write(file: &File<std::fs::File>, buffer: &[u8], at: u64) {
    file.write_at(buffer, at).expect("a write");
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, numbers @ ..] = &arguments[..] else { return Err("a file in a mount is needed".into()) };
    let number = |index: usize, default: usize| numbers.get(index).map_or(Ok(default), |number| number.parse());
    let (rounds, calls) = (number(0, 31)?, number(1, 100)?);
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(&vec![1; FILE_BYTES], 0)?;
    let files: Files = ALGORITHMS
        .iter()
        .map(|&algorithm| File::new(file.try_clone()?)?.with_algorithm(algorithm).map_err(std::io::Error::from))
        .collect::<Result<_, _>>()?;
    let mut buffer = Box::new(Aligned([7; SIZES[3]]));
    println!("{rounds} rounds of {calls} calls; microseconds per call, and times the plain call");
    println!("{:20}{}", "", SIZES.map(|size| format!("{:>16} KiB", size >> 10)).concat());
    let mut times = vec![vec![Vec::new(); SIZES.len()]; STEPS.len()];
    for round in 0..rounds.max(1) {
        for number in 0..STEPS.len() {
            let step = (number + round) % STEPS.len();
            for (size, times) in SIZES.into_iter().zip(&mut times[step]) {
                let start = Instant::now();
                for call in 0..calls.max(1) {
                    let at = call * 7 * size % (FILE_BYTES - size) / 4096 * 4096;
                    STEPS[step].1(&files, &mut buffer.0[..size], at as u64);
                }
                times.push(start.elapsed().as_secs_f64() * 1e6 / calls.max(1) as f64);
            }
        }
    }
    for (step, (name, _)) in STEPS.iter().enumerate() {
        print!("{name:20}");
        for (own, plain) in times[step].iter().zip(&times[step / 4 * 4]) {
            let mut ratios: Vec<f64> = own.iter().zip(plain).map(|(time, plain)| time / plain).collect();
            let mut own = own.clone();
            print!("{:12.1} ({:.2})", median(&mut own), median(&mut ratios));
        }
        println!();
    }
    Ok(())
}
