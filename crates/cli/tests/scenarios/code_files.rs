//! `fieldstone code encode`, `decode` and `repair` on the CPU and on a device.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{json, ok};

/// A file, and the names of others beside it.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a temporary folder"));
        let bytes: Vec<u8> = (0..300_001u64).map(|at| ((at * at) >> 7) as u8).collect();
        fs::write(files.path("file"), bytes).expect("writable");
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("readable")
    }

    /// Encodes, decodes without a data shard, and repairs it. Returns the three reports.
    fn every_job(&self, accel: &str) -> [Value; 3] {
        let (file, shards) = (self.path("file"), self.path("shards"));
        let options = ["--accel", accel, "--jobs", "2", "--json"];
        let run = |arguments: &[&str]| json(&[&["code"], arguments, &options].concat());
        let encoded = run(&["encode", &file, "--out", &shards, "--unit", "4K"]);
        ok(&["code", "verify", &shards]);
        let lost = self.read("shards/shard.1");
        fs::remove_file(self.path("shards/shard.1")).expect("removable");
        let decoded = run(&["decode", &shards, "--out", &self.path("out")]);
        assert!(self.read("out") == self.read("file"), "other bytes than were encoded");
        let repaired = run(&["repair", &shards]);
        assert!(self.read("shards/shard.1") == lost, "another shard than was lost");
        [encoded, decoded, repaired]
    }
}

#[test]
fn the_cpu_is_the_engine_unless_told_otherwise() {
    let files = Files::new();
    for report in files.every_job("cpu") {
        assert_eq!(report["accel"], "cpu", "{report}");
        assert_eq!(report["coding_jobs"], 300_001u64.div_ceil(4 * 4096), "{report}");
        assert_eq!((&report["device_jobs"], &report["device_failures"]), (&0.into(), &0.into()));
    }
    let text = ok(&["code", "encode", &files.path("file"), "--out", &files.path("again")]);
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[cfg(not(feature = "rtl"))]
#[test]
fn a_device_that_is_not_in_the_build_is_refused_before_anything_is_made() {
    let (files, rtl) = (Files::new(), ["--accel", "rtl"]);
    let (file, shards, out) = (files.path("file"), files.path("shards"), files.path("out"));
    ok(&["code", "encode", &file, "--out", &shards]);
    let new = files.path("new");
    for arguments in [
        &["encode", &file, "--out", &new][..],
        &["decode", &shards, "--out", &out],
        &["repair", &shards],
    ] {
        let error = crate::common::fails(&[&["code"], arguments, &rtl].concat());
        assert!(error.contains("make hdl-tools"), "{error}");
    }
    assert!(!Path::new(&new).exists() && !Path::new(&out).exists());
}

#[cfg(feature = "rtl")]
#[test]
fn the_simulated_device_does_every_coding_job() {
    let files = Files::new();
    for report in files.every_job("rtl") {
        assert_eq!(report["accel"], "rtl", "{report}");
        assert_eq!(report["coding_jobs"], 300_001u64.div_ceil(4 * 4096), "{report}");
        // The device codes multiples of 64 bytes, and the units of the last stripe are none.
        let did = (&report["device_jobs"], &report["device_failures"]);
        assert_eq!(did, (&18.into(), &0.into()), "{report}");
    }
    let (file, again) = (files.path("file"), files.path("again"));
    let options = ["--unit", "4K", "--accel", "rtl"];
    let text = ok(&[&["code", "encode", &file, "--out", &again][..], &options].concat());
    assert!(text.contains("rtl: the device did 18 of 19 coding jobs"), "{text}");
    assert!(Path::new(&again).join("shard.0").exists());
}
