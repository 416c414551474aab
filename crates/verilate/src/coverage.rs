//! Line coverage from Verilator's counts, summed over all test benches of a unit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable with the folder into which models write their counts. The counts of
/// each package's tests are in a folder of their own in it, with the package's name.
pub const FOLDER_VARIABLE: &str = "FIELDSTONE_COVERAGE";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A new file for the counts of one model. `None` if the environment does not name a folder.
pub(crate) fn next_file(design: &str) -> Option<PathBuf> {
    let package = std::env::var_os("CARGO_PKG_NAME").unwrap_or_default();
    let folder = PathBuf::from(std::env::var_os(FOLDER_VARIABLE)?).join(package);
    std::fs::create_dir_all(&folder).ok()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Some(folder.join(format!("{design}-{}-{number}.dat", std::process::id())))
}

/// A point of coverage: file, line, column, and branch.
type Point = (String, u32, u32, String);

/// Points of the source (blocks and branches), with the number of executions of each.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    counts: BTreeMap<Point, u64>,
}

/// The points of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLines {
    /// The file's name without its folder.
    pub file: String,
    /// Blocks and branches that can be executed.
    pub blocks: usize,
    /// Lines of the blocks that were not executed.
    pub missed: Vec<u32>,
}

impl Lines {
    /// Adds one file of counts: lines `C 'key\x02value\x01…' count`. All instances of a module,
    /// with any parameters, count together.
    pub fn add(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((point, count)) = parse(line) {
                *self.counts.entry(point).or_default() += count;
            }
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
        for ((file, line, ..), &count) in &self.counts {
            let new = || FileLines { file: file.clone(), blocks: 0, missed: Vec::new() };
            let lines = files.entry(file).or_insert_with(new);
            lines.blocks += 1;
            if count == 0 {
                lines.missed.push(*line);
            }
        }
        files.into_values().collect()
    }

    /// The number of executed points and the number of all points, of all files.
    #[must_use]
    pub fn total(&self) -> (usize, usize) {
        let executed = self.counts.values().filter(|&&count| count > 0).count();
        (executed, self.counts.len())
    }

    /// A table for people: file, share of executed blocks, lines of the blocks that were not
    /// executed.
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

fn parse(line: &str) -> Option<(Point, u64)> {
    let (keys, count) = line.strip_prefix("C '")?.rsplit_once("' ")?;
    let keys: BTreeMap<&str, &str> =
        keys.split('\u{1}').filter_map(|pair| pair.split_once('\u{2}')).collect();
    let page = keys.get("page")?;
    if !page.starts_with("v_line") && !page.starts_with("v_branch") {
        return None;
    }
    let file = Path::new(keys.get("f")?).file_name()?.to_string_lossy().into_owned();
    let column = keys.get("n").and_then(|column| column.parse().ok()).unwrap_or(0);
    let branch = keys.get("o").copied().unwrap_or("").to_owned();
    Some(((file, keys.get("l")?.parse().ok()?, column, branch), count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_instances_add_up_and_branches_stand_apart() {
        let point = |line: u32, branch: &str, count: u32| {
            format!(
                "C '\u{1}f\u{2}tb/../a.sv\u{1}l\u{2}{line}\u{1}n\u{2}5\
                 \u{1}page\u{2}v_branch/a\u{1}o\u{2}{branch}' {count}\n"
            )
        };
        let mut lines = Lines::default();
        lines.add(&(point(7, "if", 3) + &point(7, "else", 0) + &point(9, "if", 0)));
        lines.add(&point(9, "if", 1));
        let missed = vec![7];
        assert_eq!(lines.files(), [FileLines { file: "a.sv".to_owned(), blocks: 3, missed }]);
        assert_eq!(lines.total(), (2, 3));
    }
}
