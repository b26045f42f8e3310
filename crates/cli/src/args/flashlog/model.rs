//! The command line of `holdfast flashlog model`.

use crate::{duration, paths};
use clap::{Args, ValueEnum, ValueHint};
use holdfast_reliability::{Bars, Devices, Prices};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct FlashlogModel {
    /// Mean time until a disk fails
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "300000h")]
    pub(crate) disk_mttf: f64,
    /// Mean time until a USB stick fails
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "50000h")]
    pub(crate) stick_mttf: f64,
    /// Mean time until an SSD fails
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "2000000h")]
    pub(crate) ssd_mttf: f64,
    /// Mean time until a failed device is replaced and filled
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "72h")]
    pub(crate) repair: f64,
    /// Disks whose capacity is to be had, for the lives
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) disks: u32,
    /// Price of a disk of 1 TB
    #[arg(long, value_name = "MONEY", value_parser = money, default_value = "50")]
    pub(crate) disk_price: f64,
    /// Price of a disk of 500 GB, of which RAID 5 takes three
    #[arg(long, value_name = "MONEY", value_parser = money, default_value = "35")]
    pub(crate) small_disk_price: f64,
    /// Price of a USB stick
    #[arg(long, value_name = "MONEY", value_parser = money, default_value = "25")]
    pub(crate) stick_price: f64,
    /// Price of an SSD
    #[arg(long, value_name = "MONEY", value_parser = money, default_value = "150")]
    pub(crate) ssd_price: f64,
    /// Price of 1 kWh
    #[arg(long, value_name = "MONEY", value_parser = money, default_value = "0.20")]
    pub(crate) kwh_price: f64,
    /// How long devices are on in their life
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "15000h")]
    pub(crate) on: f64,
    /// How long the disk with the backup is on
    #[arg(long, value_name = "TIME", value_parser = hours, default_value = "1500h")]
    pub(crate) backup_on: f64,
    /// Draw a figure of the thesis instead, as SVG
    #[arg(long, value_enum, requires = "out")]
    pub(crate) figure: Option<FlashlogFigure>,
    /// File for the figure; - is standard output
    #[arg(long, value_name = "FILE", value_parser = paths::svg, value_hint = ValueHint::FilePath, requires = "figure")]
    pub(crate) out: Option<PathBuf>,
}

impl FlashlogModel {
    pub(crate) fn devices(&self) -> Devices {
        Devices {
            disk_mttf_h: self.disk_mttf,
            stick_mttf_h: self.stick_mttf,
            ssd_mttf_h: self.ssd_mttf,
            repair_h: self.repair,
            disks: self.disks.into(),
        }
    }

    pub(crate) fn prices(&self) -> Prices {
        Prices {
            disk: self.disk_price,
            small_disk: self.small_disk_price,
            stick: self.stick_price,
            ssd: self.ssd_price,
            kwh: self.kwh_price,
            on_h: self.on,
            backup_on_h: self.backup_on,
        }
    }
}

/// Figures of the thesis.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlashlogFigure {
    /// Mean times to failure (6.14)
    Mttf,
    /// Failures within five and ten years (6.15)
    Failures,
    /// Costs (6.18)
    Costs,
}

impl FlashlogFigure {
    pub(crate) fn bars(self) -> Bars {
        match self {
            FlashlogFigure::Mttf => Bars::Lives,
            FlashlogFigure::Failures => Bars::Failures,
            FlashlogFigure::Costs => Bars::Costs,
        }
    }
}

fn hours(text: &str) -> Result<f64, String> {
    match duration::parse(text)? / 3600.0 {
        none if none <= 0.0 => Err("more than no time".into()),
        hours => Ok(hours),
    }
}

fn money(text: &str) -> Result<f64, String> {
    let amount = text.trim().parse().ok().filter(|amount: &f64| (0.0..=1e12).contains(amount));
    amount.ok_or_else(|| "an amount of money, as 49.90".into())
}
