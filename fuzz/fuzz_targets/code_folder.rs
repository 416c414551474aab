//! Feeds arbitrary headers and manifests to the jobs of `fieldstone code`; the properties checked
//! are those of `fieldstone_files::fuzz`.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// In memory where that is possible: every input is a folder of files.
static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() }
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_files::fuzz::folder(input, &SCRATCH);
});
