//! A disk on which nothing is overwritten: what a block has is where the root says, roots take turns, and a snapshot is a root's list kept.
//! Blocks and roots have checksums. As small as such a thing can be.

use super::medium::{BLOCKS, Contents, Medium};
use super::{Media, Model};
use crate::numbered::content;
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_integrity::crc64;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Blocks of its disk: two roots, and room for what the host has, a snapshot and what is between two flushes.
pub(super) const DISK_BLOCKS: u64 = 2 + 6 * BLOCKS as u64;
/// Where a root has its checksum.
const SUM_AT: usize = BLOCK_SIZE - 8;

/// Where a block is, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    at: u64,
    sum: u64,
}

#[derive(Clone)]
struct Root {
    sequence: u64,
    current: Vec<Place>,
    snapshot: Vec<Place>,
}

impl Root {
    fn encode(&self) -> [u8; BLOCK_SIZE] {
        let places = self.current.iter().chain(&self.snapshot).flat_map(|place| [place.at, place.sum]);
        let words: Vec<u8> = std::iter::once(self.sequence).chain(places).flat_map(u64::to_le_bytes).collect();
        let mut bytes = [0; BLOCK_SIZE];
        bytes[..words.len()].copy_from_slice(&words);
        let sum = crc64(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BLOCK_SIZE]) -> Option<Root> {
        let (words, _none) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let places: Vec<Place> =
            words[1..=4 * BLOCKS].chunks(2).map(|pair| Place { at: pair[0], sum: pair[1] }).collect();
        let (current, snapshot) = places.split_at(BLOCKS);
        let root = Root { sequence: words[0], current: current.to_vec(), snapshot: snapshot.to_vec() };
        (crc64(&bytes[..SUM_AT]) == words[SUM_AT / 8]).then_some(root)
    }
}

/// The disk in use.
pub(super) struct CopyOnWrite {
    disk: Arc<Medium>,
    root: Root,
    /// What the newest root on the disk has, which must stay.
    durable: Vec<Place>,
}

impl CopyOnWrite {
    pub(super) fn new(media: &[Arc<Medium>]) -> CopyOnWrite {
        let none = vec![Place::default(); BLOCKS];
        let root = Root { sequence: 0, current: none.clone(), snapshot: none.clone() };
        CopyOnWrite { disk: Arc::clone(&media[0]), root, durable: none }
    }

    fn free(&self) -> u64 {
        let is_used = |at: u64| {
            [&self.root.current, &self.root.snapshot, &self.durable]
                .iter()
                .any(|list| list.iter().any(|place| place.at == at))
        };
        (2..DISK_BLOCKS).find(|at| !is_used(*at)).expect("there is room for three of each block")
    }
}

impl Model for CopyOnWrite {
    fn write(&mut self, at: usize, bytes: &[u8; BLOCK_SIZE]) -> Result<(), String> {
        let place = Place { at: self.free(), sum: crc64(bytes) };
        self.disk.write(place.at, &[IoSlice::new(bytes)]).map_err(|error| error.to_string())?;
        self.root.current[at] = place;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.root.sequence += 1;
        let (at, bytes) = (self.root.sequence % 2, self.root.encode());
        let done = self.disk.flush().and_then(|()| self.disk.write(at, &[IoSlice::new(&bytes)]));
        done.and_then(|()| self.disk.flush()).map_err(|error| error.to_string())?;
        self.durable.clone_from(&self.root.current);
        Ok(())
    }

    fn save(&mut self) -> Result<(), String> {
        self.root.snapshot.clone_from(&self.root.current);
        self.flush()
    }

    fn read(&self) -> Result<Contents, String> {
        read(&*self.disk, &self.root.current)
    }
}

/// What a list's blocks have; an error if one is not as its checksum says.
fn read(device: &dyn Device, list: &[Place]) -> Result<Contents, String> {
    let one = |place: &Place| {
        let mut bytes = [0; BLOCK_SIZE];
        if place.at != 0 {
            device.read(place.at, &mut [IoSliceMut::new(&mut bytes)]).map_err(|error| error.to_string())?;
            if crc64(&bytes) != place.sum {
                return Err(format!("block {} is damaged", place.at));
            }
        }
        Ok(content(&bytes))
    };
    list.iter().map(one).collect()
}

/// What the newest root has, and its snapshot, as far as all of it can be read.
pub(super) fn recover(media: &Media) -> Vec<Contents> {
    let Some(disk) = &media[0] else { return Vec::new() };
    let roots = [0, 1].map(|at| {
        let mut bytes = [0; BLOCK_SIZE];
        disk.read(at, &mut [IoSliceMut::new(&mut bytes)]).ok().and_then(|()| Root::decode(&bytes))
    });
    match roots.into_iter().flatten().max_by_key(|root| root.sequence) {
        Some(root) => [&root.current, &root.snapshot].iter().filter_map(|list| read(disk, list).ok()).collect(),
        None => Vec::new(),
    }
}
