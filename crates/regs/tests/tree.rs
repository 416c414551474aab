//! The generated files match the description, and wrong descriptions give the right errors.

use std::fs;
use std::path::{Path, PathBuf};

use fieldstone_regs::{CheckError, DESCRIPTION, check, outputs, parse};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text() -> String {
    fs::read_to_string(root().join(DESCRIPTION)).expect("the description is there")
}

#[test]
fn the_tree_has_what_would_be_written() {
    let description = parse(&text()).expect("the description is well-formed");
    check(&description).expect("the description is right");
    for (name, content) in outputs(&description) {
        let found = fs::read_to_string(root().join(name)).expect("the file is there");
        assert!(found == content, "{name} is not up to date: run `cargo run -p fieldstone-regs`");
    }
}

/// The result of `check` for the description with one change.
fn changed(from: &str, to: &str) -> CheckError {
    let text = text();
    assert!(text.contains(from), "{from:?} is in the description");
    let description = parse(&text.replacen(from, to, 1)).expect("it is still well-formed");
    check(&description).expect_err("that is wrong")
}

#[test]
fn wrong_descriptions_are_told_apart() {
    let cases = [
        ("name = \"VERSION\"\noffset = 0x0008", "name = \"VERSION\"\noffset = 0x0000", "overlaps"),
        ("offset = 0x0008", "offset = 0x0009", "not a multiple of 8"),
        ("name = \"CYCLES\"\noffset", "name = \"VERSION\"\noffset", "two of the name VERSION"),
        ("bits = [31, 16]", "bits = [16, 31]", "[high, low]"),
        ("bits = [31, 16]", "bits = [31, 4]", "overlaps NUMBER"),
        ("name = \"NUMBER\"", "name = \"MODULE\"", "keyword"),
        ("name = \"NUMBER\"", "name = \"Number\"", "no name"),
        ("count = \"MAX_FUNCTIONS\"", "count = \"MANY\"", "there is no MANY"),
        ("offset = 0x2000", "offset = 0x1200", "overlaps"),
        ("offset = 0x2000", "offset = 0x1c000", "behind 131072"),
        ("extends = \"DESCRIPTOR\"", "extends = \"LETTER\"", "there is no LETTER"),
        ("\"EPOCH\", offset = 40", "\"EPOCH\", offset = 36", "DESCRIPTOR"),
        ("offset = 88, bytes = 8", "offset = 128, bytes = 8", "behind 128"),
        ("\"WIDTH\", offset = 44, bytes = 2", "\"WIDTH\", offset = 45, bytes = 2", "multiple of 2"),
        ("name = \"STALE_EPOCH\", value = 9", "name = \"STALE_EPOCH\", value = 8", "value 8"),
        ("name = \"FENCE\", value = 2", "name = \"FENCE\", value = 3", "value 3"),
        ("name = \"HOST_ERROR\", value = 14", "name = \"HOST_ERROR\", value = 256", "value 256"),
        ("type = \"status\"", "type = \"mood\"", "there is no mood"),
        ("bits = [11, 8], type", "bits = [9, 8], type", "behind 2"),
    ];
    for (from, to, wanted) in cases {
        let said = changed(from, to).to_string();
        assert!(said.contains(wanted), "{from:?} -> {to:?} says {said:?}, not {wanted:?}");
    }
}

#[test]
fn unknown_keys_are_errors_that_say_where() {
    let text = text().replacen("access = \"ro\"", "acess = \"ro\"", 1);
    let error = parse(&text).expect_err("no such key").to_string();
    assert!(error.contains("acess") && error.contains("line"), "{error}");
}
