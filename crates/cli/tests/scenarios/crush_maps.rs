//! Conversions of CRUSH maps between text and binary.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{fails, fieldstone, ok, run};

const TEXT: &str = "\
device 0 osd.0 class hdd
device 1 osd.1 class ssd
type 0 osd
type 1 root
root r { alg straw2 item osd.0 weight 1.5 item osd.1 weight 2 }
rule any { id 0 type replicated min_size 1 max_size 10
  step take r class ssd step choose firstn 0 type osd step emit }
";

const MSR_RULE: &str =
    "rule msr { id 1 type msr_indep step take r step choosemsr 2 type osd step emit }\n";

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new(text: &str) -> Self {
        let files = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        fs::write(files.path("map.txt"), text).expect("writable");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("readable")
    }

    /// The names of the files in the folder, sorted.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("readable");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("readable").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

#[test]
fn text_becomes_binary_and_text_again() {
    let files = Files::new(TEXT);
    let (text, binary, again) =
        (files.name("map.txt"), files.name("map.bin"), files.name("again.bin"));
    ok(&["crush", "compile", &text, "-o", &binary]);
    let printed = ok(&["crush", "decompile", &binary]);
    assert!(printed.contains("device 1 osd.1 class ssd\n"), "{printed}");
    ok(&["crush", "decompile", &binary, "-o", &text]);
    assert_eq!(files.read("map.txt"), printed.as_bytes());
    ok(&["crush", "compile", &text, "--output", &again]);
    assert_eq!(files.read("again.bin"), files.read("map.bin"));
    // The form of newer releases also has the two MSR tunables.
    ok(&["crush", "compile", &text, "--release", "20", "-o", &again]);
    assert_eq!(files.read("again.bin").len(), files.read("map.bin").len() + 8);
    assert_eq!(files.names(), ["again.bin", "map.bin", "map.txt"]);
}

#[test]
fn standard_input_and_output_are_files_too() {
    let files = Files::new(TEXT);
    ok(&["crush", "compile", &files.name("map.txt"), "-o", &files.name("map.bin")]);
    let mut command = fieldstone(&["crush", "compile", "-", "-o", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    child.stdin.take().expect("a pipe").write_all(TEXT.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(output.stdout, files.read("map.bin"));
}

#[test]
fn a_text_that_is_no_map_leaves_the_file_as_it_was() {
    let files = Files::new(&TEXT.replace("item osd.1", "item osd.7"));
    let (text, binary) = (files.name("map.txt"), files.name("map.bin"));
    fs::write(files.path("map.bin"), "what was there").expect("writable");
    let error = fails(&["crush", "compile", &text, "-o", &binary]);
    assert!(
        error.contains("map.txt: line 5, column 48: no bucket or device is called `osd.7`"),
        "{error}"
    );
    assert_eq!(files.read("map.bin"), b"what was there");
    let error = fails(&["crush", "decompile", &binary]);
    let expected = "map.bin: line 1, column 10: expected `{`, found `there`";
    assert!(error.contains(expected), "{error}");
    let nowhere = files.path("none/map.bin");
    fs::write(files.path("map.txt"), TEXT).expect("writable");
    let error = fails(&["crush", "compile", &text, "-o", nowhere.to_str().expect("UTF-8")]);
    assert!(error.contains("none/map.bin"), "{error}");
    assert_eq!(files.names(), ["map.bin", "map.txt"]);
}

#[test]
fn damaged_binary_maps_are_told_with_the_byte() {
    let files = Files::new(TEXT);
    let (text, binary) = (files.name("map.txt"), files.name("map.bin"));
    ok(&["crush", "compile", &text, "-o", &binary]);
    let mut bytes = files.read("map.bin");
    bytes[16] = 9;
    fs::write(files.path("map.bin"), &bytes).expect("writable");
    let error = fails(&["crush", "decompile", &binary]);
    assert!(error.contains("at byte 16: the algorithm of a bucket is 9"), "{error}");
    let error = fails(&["crush", "decompile", &files.name("none.bin")]);
    assert!(error.contains("cannot open") && error.contains("none.bin"), "{error}");
}

#[test]
fn a_map_is_not_written_in_a_form_that_cannot_hold_it() {
    let files = Files::new(&format!("{TEXT}{MSR_RULE}"));
    let (text, binary) = (files.name("map.txt"), files.name("map.bin"));
    let error = fails(&["crush", "compile", &text, "--release", "16", "-o", &binary]);
    assert!(error.contains("--release 20"), "{error}");
    assert!(!Path::new(&binary).exists());
    ok(&["crush", "compile", &text, "-o", &binary]);
    assert!(ok(&["crush", "decompile", &binary]).contains("step choosemsr 2 type osd"));
}

#[test]
fn weights_that_ceph_takes_as_negative_are_warned_of() {
    let files = Files::new(&TEXT.replace("weight 2", "weight 40000"));
    let output = run(&["crush", "compile", &files.name("map.txt"), "-o", &files.name("map.bin")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success());
    assert!(stderr.contains("warning: osd.1 weighs 32768.0 or more in r"), "{stderr}");
}
