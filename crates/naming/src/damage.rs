//! Which errors tell of bad bytes or of a device that failed, and where that is.

use crate::error::{Error, ErrorKind};
use holdfast_object::{self as object, Side};

/// Bad bytes that a request has met, or a device that failed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage<'a> {
    /// Where.
    pub side: Side,
    /// The device's name, if one is concerned and known.
    pub device: Option<&'a str>,
    /// The 4 KiB block of the device, if one is concerned and known; the first of several that it was asked for at once.
    pub device_address: Option<u64>,
    /// The block of 4 KiB of the file, if one is concerned and known. What a device failed to write has none: it is whatever has not been made
    /// durable.
    pub block: Option<u64>,
}

impl Error {
    /// What it tells of bad bytes or of a failed device, if anything.
    pub fn damage(&self) -> Option<Damage<'_>> {
        let somewhere = Damage { side: Side::Device, device: None, device_address: None, block: None };
        match self {
            Error::Object(object::Error::Corrupt(corruption)) => {
                let place = &corruption.place;
                Some(at(if place.device.is_some() { Side::Device } else { Side::Memory }, place))
            }
            // Bytes that were given up, in memory before they were stored or on the device.
            Error::Object(object::Error::Lost { side, place }) => Some(at(*side, place)),
            Error::Object(object::Error::Device(fault)) => Some(Damage {
                device: Some(&fault.device),
                device_address: fault.address,
                block: fault.page.filter(|(object, _)| is_of_file(Some(*object))).map(|(_, index)| index),
                ..somewhere
            }),
            error => (error.kind() == ErrorKind::Corrupt).then_some(somewhere),
        }
    }
}

fn at(side: Side, place: &object::Place) -> Damage<'_> {
    Damage { side, device: place.device.as_deref(), device_address: place.address, block: block_of_file(place) }
}

/// The block of the file that is bad. A bad block of its tree, or of the store's own objects, has an index of another kind.
fn block_of_file(place: &object::Place) -> Option<u64> {
    place.index.filter(|_| is_of_file(place.object) && place.level.unwrap_or(0) == 0)
}

/// As far as is known.
fn is_of_file(object: Option<object::ObjectKey>) -> bool {
    object.is_none_or(|key| key.domain != object::DomainId::SYSTEM)
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

    #[test]
    fn a_failed_device_is_told_with_what_it_was_asked_for() {
        let fault = |page| {
            Error::Object(object::Error::Device(Box::new(object::DeviceFault {
                device: "/dev/x".into(),
                operation: "read".into(),
                address: Some(9),
                length: 4096,
                page,
                cause: "Input/output error".into(),
            })))
        };
        let page = |domain| Some((object::ObjectKey { domain, object: object::ObjectId(16) }, 7));
        for (page, block) in
            [(page(object::DomainId::MAIN), Some(7)), (page(object::DomainId::SYSTEM), None), (None, None)]
        {
            let device = Some("/dev/x");
            let told = Damage { side: Side::Device, device, device_address: Some(9), block };
            assert_eq!(fault(page).damage(), Some(told));
        }
    }
}
