//! Maps from files.

use std::path::Path;

use anyhow::Context;
use fieldstone_crush::{Map, binary};

/// Reads a binary map.
pub fn load_map(path: &Path) -> anyhow::Result<Map> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    binary::decode(&bytes).with_context(|| format!("{name} is not a CRUSH map"))
}
