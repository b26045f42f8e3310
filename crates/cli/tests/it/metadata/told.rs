//! What a report of a scribble must say.

/// What is known of a snapshot beside its entry, each with a copy. Found while an epoch is built, that is begun anew.
const NUMBERS_OF_SNAPSHOTS: &[&str] = &["number of a snapshot", "place of a snapshot", "pages that are left"];

/// Whether a report says of a scribble which bytes or which field it hit, and when that was last changed legally.
pub(super) fn tells_what_and_when(kind: &str, field: &str, found: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| found.contains(part));
    // "table.atime.nanos" is "table.nanos" in the form that it has on the device, "address[0]" is "address".
    let parts = field.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names_field = { parts }.filter(|part| part.len() > 1).any(|part| {
        has(&[": expected ", " from its byte "].map(|then| format!("{part}{then}")).each_ref().map(String::as_str))
    });
    let is_field = names_field || has(&["root has bits that it has no place for"]);
    let what = match kind {
        "label" => has(&[" bytes differ, from byte "]),
        "object-table" | "system-tree" | "block-tree" | "bitmap" | "reference-table" | "map" | "snapshot-list"
        | "dead-list" => {
            let is_new = has(&["it is new, so the last recovery point has none to tell the bytes by"]);
            is_new || has(&[" bytes differ"]) && has(&[" from byte "])
        }
        "record" => is_field || has(&["no object table has one of before, to tell the fields"]),
        // What is in no list is a number with a name.
        "snapshot" => is_field || has(NUMBERS_OF_SNAPSHOTS),
        "superblock" => is_field || has(&["more than one word of it"]),
        "allocator" => has(&["bits of what is ", "by the last recovery point's bitmap, "]) && has(&[" block"]),
        // Numbers and sums by themselves: the report has their names, and both values.
        _ => true,
    };
    let when =
        has(&[", last changed legally for epoch ", "; last changed legally for epoch ", ", as counted for epoch "]);
    // No epoch changes these, or it is a number that is put right from its copy.
    let is_of_no_epoch = ["label", "numbers", "intent-log", "log-contents", "log-batch"].contains(&kind)
        || kind == "snapshot" && has(NUMBERS_OF_SNAPSHOTS);
    what && (when || is_of_no_epoch || has(&[": put right from its copy"])) && !has(&[" or before"])
}
