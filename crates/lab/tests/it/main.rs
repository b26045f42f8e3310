//! The stack against the model, power cuts and faulty disks.
mod campaign;
mod decoders;
mod diff;
mod diff_cost;
mod enemy;
mod errors;
mod explorer;
mod failures;
mod faults;
mod flashlog;
mod foreign;
mod golden;
mod grow;
mod metadata;
mod power;
mod protection;
mod regressions;
mod requests;
mod schemes;
mod soak;
mod torture;

/// A number that can be given from outside.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}
