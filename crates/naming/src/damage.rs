//! Which errors tell of bad bytes, and where these are.

use crate::error::{Error, ErrorKind};
use holdfast_object::{self as object, Side};

/// Bad bytes that a request has met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Where.
    pub side: Side,
    /// The 4 KiB block of the device, if one is concerned and known.
    pub device_address: Option<u64>,
    /// The block of 4 KiB of the file, if one is concerned and known.
    pub block: Option<u64>,
}

impl Error {
    /// What it tells of bad bytes, if anything.
    pub fn damage(&self) -> Option<Damage> {
        let somewhere = Damage { side: Side::Device, device_address: None, block: None };
        let at =
            |side, place: &object::Place| Damage { side, device_address: place.address, block: block_of_file(place) };
        match self {
            Error::Object(object::Error::Corrupt(corruption)) => {
                let place = &corruption.place;
                Some(at(if place.device.is_some() { Side::Device } else { Side::Memory }, place))
            }
            // Bytes that were given up, in memory before they were stored or on the device.
            Error::Object(object::Error::Lost { side, place }) => Some(at(*side, place)),
            Error::Object(object::Error::Device(_)) => Some(somewhere),
            error => (error.kind() == ErrorKind::Corrupt).then_some(somewhere),
        }
    }
}

/// The block of the file that is bad. A bad block of its tree, or of the store's own objects, has an index of another kind.
fn block_of_file(place: &object::Place) -> Option<u64> {
    let is_of_file = place.object.is_none_or(|key| key.domain != object::DomainId::SYSTEM);
    place.index.filter(|_| is_of_file && place.level.unwrap_or(0) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_which_side_and_block() {
        let place = object::Place { index: Some(7), ..object::Place::default() };
        let stored = object::Place { device: Some("/dev/x".into()), address: Some(9), ..place.clone() };
        let corrupt = |place| Error::Object(object::Error::corrupt(place, "checksum", 1, 2));
        assert_eq!(block_of_file(&place), Some(7));
        assert_eq!(block_of_file(&object::Place { level: Some(0), ..place.clone() }), Some(7));
        assert_eq!(
            block_of_file(&object::Place { level: Some(1), ..place.clone() }),
            None,
            "the 7th block of its tree"
        );
        let table = object::ObjectKey { domain: object::DomainId::SYSTEM, object: object::ObjectId(16) };
        assert_eq!(block_of_file(&object::Place { object: Some(table), ..place.clone() }), None);
        let side = |error: &Error| error.damage().map(|damage| (damage.side, damage.block));
        assert_eq!(side(&corrupt(place.clone())), Some((Side::Memory, Some(7))));
        assert_eq!(side(&corrupt(stored.clone())), Some((Side::Device, Some(7))));
        assert_eq!(corrupt(stored).damage().and_then(|damage| damage.device_address), Some(9));
        for on in [Side::Memory, Side::Device] {
            let lost = object::Error::Lost { side: on, place: Box::new(place.clone()) };
            assert_eq!(side(&Error::Object(lost)), Some((on, Some(7))));
        }
        assert_eq!(side(&Error::InvalidArgument("x")), None);
    }
}
