//! libFuzzer's entry: the decoder that the variable `DECODER` names.
#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static DECODER: OnceLock<fn(&[u8]) -> bool> = OnceLock::new();
    let decoder = DECODER.get_or_init(|| {
        let name = std::env::var("DECODER").expect("DECODER names a decoder");
        let found = holdfast_lab::foreign::decoders::all().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("there is no decoder {name}")).1
    });
    decoder(bytes);
});
