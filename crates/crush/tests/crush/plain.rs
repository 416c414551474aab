//! The plain mapper is the definition that the vectors and the hardware are compared with. So the
//! plain mapper names nothing of theirs.

use std::fs;
use std::path::{Path, PathBuf};

/// The sources of the plain mapper, in `src`.
const PLAIN: &[&str] = &[
    "bucket",
    "check.rs",
    "choose_args.rs",
    "derived_cache.rs",
    "hash.rs",
    "ln.rs",
    "map.rs",
    "mapper.rs",
    "msr.rs",
    "rule.rs",
    "tries.rs",
    "tunables.rs",
];

/// Names of the optimised modules, and of the facade that chooses a mapper.
const OTHERS: &[&str] = &["batch::", "simd::", "Kernel", "rule_ref::", "RuleRef"];

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    let entries = fs::read_dir(path).expect("a folder of the sources");
    entries.flat_map(|entry| files(&entry.expect("readable").path())).collect()
}

#[test]
fn the_plain_mapper_uses_nothing_that_is_optimised() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in PLAIN.iter().flat_map(|name| files(&sources.join(name))) {
        let text = fs::read_to_string(&path).expect("a source");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for other in OTHERS {
                assert!(!line.contains(other), "{}: {line}", path.display());
            }
        }
    }
}
