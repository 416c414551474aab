//! Line coverage, as Verilator counts it, summed over all test benches of a unit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that names the folder where models leave their counts.
pub const FOLDER_VARIABLE: &str = "FIELDSTONE_COVERAGE";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A new file for the counts of one model, or `None` when nobody asked for them.
pub(crate) fn next_file(design: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(FOLDER_VARIABLE)?);
    std::fs::create_dir_all(&folder).ok()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Some(folder.join(format!("{design}-{}-{number}.dat", std::process::id())))
}

/// Lines of source that were and were not executed.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Count by file name and line (of blocks: Verilator counts a block once).
    counts: BTreeMap<(String, u32), u64>,
}

/// The lines of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLines {
    /// The file's name without its folder.
    pub file: String,
    /// Blocks that can be executed.
    pub blocks: usize,
    /// First lines of those that were not.
    pub missed: Vec<u32>,
}

impl Lines {
    /// Adds one file of counts: lines `C 'key\x02value\x01…' count`.
    pub fn add(&mut self, text: &str) {
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("C '") else { continue };
            let Some((point, count)) = rest.rsplit_once("' ") else { continue };
            let keys: BTreeMap<&str, &str> =
                point.split('\u{1}').filter_map(|pair| pair.split_once('\u{2}')).collect();
            let is_line = keys
                .get("page")
                .is_some_and(|page| page.starts_with("v_line") || page.starts_with("v_branch"));
            let (Some(file), Some(line), true) = (keys.get("f"), keys.get("l"), is_line) else {
                continue;
            };
            let file = Path::new(file)
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let (Ok(line), Ok(count)) = (line.parse(), count.parse::<u64>()) else { continue };
            // Two instances, or two branches of one line, are one block; it is missed only when
            // no one ran it, except branches, which Verilator lists by column.
            let column = keys.get("n").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            let _ = column;
            *self.counts.entry((file, line)).or_default() += count;
        }
    }

    /// Adds every file of a folder.
    pub fn add_folder(&mut self, folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "dat") {
                self.add(&String::from_utf8_lossy(&std::fs::read(path)?));
            }
        }
        Ok(())
    }

    /// The files, in order of their names.
    #[must_use]
    pub fn files(&self) -> Vec<FileLines> {
        let mut files: BTreeMap<&str, FileLines> = BTreeMap::new();
        for ((file, line), &count) in &self.counts {
            let new = || FileLines { file: file.clone(), blocks: 0, missed: Vec::new() };
            let lines = files.entry(file).or_insert_with(new);
            lines.blocks += 1;
            if count == 0 {
                lines.missed.push(*line);
            }
        }
        files.into_values().collect()
    }

    /// A table for people: file, share of blocks executed, lines of those that were not.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = String::new();
        for FileLines { file, blocks, missed } in self.files() {
            let share = 100.0 * (blocks - missed.len()) as f64 / blocks as f64;
            let lines: Vec<String> = missed.iter().map(u32::to_string).collect();
            let _ =
                writeln!(table, "{file:<28} {share:>6.1} % of {blocks:>4}  {}", lines.join(" "));
        }
        table
    }
}
