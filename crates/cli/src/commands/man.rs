//! `holdfast man`: the manual pages, in the language of man(1).

use crate::args::Man;
use crate::failure::{Failure, Result};
use crate::man::{Page, pages};
use crate::output::{Format, Report, count, print};
use crate::quoting;
use serde::Serialize;
use std::fs;
use std::path::Path;

#[derive(Serialize)]
struct Shown {
    page: String,
    roff: String,
}

impl Report for Shown {
    fn words(&self) -> String {
        self.roff.clone()
    }
}

#[derive(Serialize)]
struct Written {
    directory: String,
    pages: Vec<String>,
}

impl Report for Written {
    fn words(&self) -> String {
        format!("Wrote {} to {}.\n", count(self.pages.len() as u64, "page", "pages"), quoting::name(&self.directory))
    }
}

pub(crate) fn run(arguments: &Man, format: Format) -> Result<()> {
    match &arguments.out {
        Some(directory) => print(format, &write(directory)?),
        None => print(format, &show(&arguments.command)?),
    }
    Ok(())
}

fn show(words: &[String]) -> Result<Shown> {
    let wanted = std::iter::once("holdfast").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    match pages().into_iter().find(|page| page.command == wanted) {
        Some(page) => Ok(Shown { page: page.name, roff: page.roff }),
        None => Err(Failure::usage(format!("there is no command `{wanted}`")).hint("`holdfast --help` lists them")),
    }
}

fn write(directory: &Path) -> Result<Written> {
    fs::create_dir_all(directory).map_err(|error| Failure::at(directory, crate::mounts::plain(&error)))?;
    let mut names = Vec::new();
    for Page { name, roff, .. } in pages() {
        let name = format!("{name}.1");
        let path = directory.join(&name);
        fs::write(&path, roff).map_err(|error| Failure::at(&path, crate::mounts::plain(&error)))?;
        names.push(name);
    }
    Ok(Written { directory: directory.display().to_string(), pages: names })
}
