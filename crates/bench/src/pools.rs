//! Pools and volumes of our own nodes that a benchmark makes, by the commands of a user.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use fieldstone_codes::Profile;

/// Size of a pool, as a multiple of the needs of a full volume. A log needs room to collect
/// garbage; with too much room, it would not have to collect.
const ROOM: u64 = 3;

/// A pool with one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchPool {
    /// The code, as the command line has it.
    pub code: String,
    /// The nodes of the pool.
    pub nodes: u64,
    shards: u64,
    data: u64,
}

impl BenchPool {
    /// A pool with a code.
    ///
    /// # Errors
    /// The text is no code, or the code has more shards than the pool has nodes.
    pub fn new(code: &str, nodes: u64) -> anyhow::Result<Self> {
        let profile: Profile = code.parse()?;
        let made = profile.code();
        let (shards, data) = ((made.k() + made.m()) as u64, made.k() as u64);
        if shards > nodes {
            bail!("{code} has {shards} shards, and the pool of this benchmark has {nodes} nodes");
        }
        Ok(Self { code: code.to_owned(), nodes, shards, data })
    }

    /// The size of each node for a volume of this size.
    pub fn node_bytes(&self, size_bytes: u64) -> u64 {
        /// Small volumes also need room for their journal.
        const SMALLEST: u64 = 128 << 20;
        let bytes = size_bytes * ROOM * self.shards / self.data / self.nodes;
        bytes.next_multiple_of(1 << 20).max(SMALLEST)
    }

    /// Most bytes that the pool takes on the file system.
    pub fn disk_bytes(&self, size_bytes: u64) -> u64 {
        self.node_bytes(size_bytes) * self.nodes
    }

    /// Makes the pool in a folder, with the volume `v`, and gives the commands. `program` is this
    /// program.
    ///
    /// # Errors
    /// A command fails.
    pub fn make(
        &self,
        program: &Path,
        folder: &Path,
        size_bytes: u64,
    ) -> anyhow::Result<Vec<Vec<String>>> {
        let commands = self.commands(program, folder, size_bytes);
        commands.iter().try_for_each(|words| run_to_end(words))?;
        Ok(commands)
    }

    fn commands(&self, program: &Path, folder: &Path, size_bytes: u64) -> Vec<Vec<String>> {
        let program = program.display().to_string();
        let pool = folder.display();
        let create = format!(
            "pool create {pool} --nodes {} --code {} --node-size {}M",
            self.nodes,
            self.code,
            self.node_bytes(size_bytes) >> 20
        );
        let volume = format!("volume create {pool}/v --size {size_bytes}");
        // The folder's path has no space: `RunFolder::make` checks its parent and chooses its name.
        let words = |line: String| {
            std::iter::once(program.clone()).chain(line.split(' ').map(str::to_owned)).collect()
        };
        [create, volume].map(words).to_vec()
    }
}

/// The volume of a pool in this folder, as a target of `serve` and `embed`.
pub fn volume_of(folder: &Path) -> String {
    folder.join("v").display().to_string()
}

fn run_to_end(words: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("a command has a program")?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{}: {}", shown(words), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A command as a user would type it: the program without its folder.
pub fn shown(words: &[String]) -> String {
    let mut words = words.to_vec();
    if let Some(program) = words.first_mut()
        && let Some(name) = Path::new(program.as_str()).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_room_for_the_log() {
        let rs = BenchPool::new("rs:4+2", 6).expect("a code");
        assert_eq!(rs.node_bytes(1 << 30), 768 << 20);
        assert_eq!(rs.disk_bytes(1 << 30), (6 * 768) << 20);
        assert_eq!(rs.node_bytes(1 << 20), 128 << 20);
        let copies = BenchPool::new("copies:3", 6).expect("a code");
        assert_eq!(copies.node_bytes(1 << 30), 1536 << 20);
    }

    #[test]
    fn codes_that_do_not_fit_are_refused() {
        let refused = |code: &str| BenchPool::new(code, 6).expect_err("refused").to_string();
        assert!(refused("rs:6+3").contains("9 shards"));
        assert!(refused("rs:x").contains("rs:"));
        assert!(refused("raid:5").contains("raid:5"));
    }

    #[test]
    fn commands_are_those_of_a_user() {
        let pool = BenchPool::new("rs:4+2", 6).expect("a code");
        let commands = pool.commands(Path::new("/opt/bin/fieldstone"), Path::new("/p"), 1 << 30);
        let lines: Vec<String> = commands.iter().map(|words| shown(words)).collect();
        assert_eq!(
            lines,
            [
                "fieldstone pool create /p --nodes 6 --code rs:4+2 --node-size 768M",
                "fieldstone volume create /p/v --size 1073741824"
            ]
        );
        assert_eq!(volume_of(Path::new("/p")), "/p/v");
    }
}
