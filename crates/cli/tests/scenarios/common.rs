//! The helpers of the scenarios: a pool in a temporary folder, processes of the command, a client.
//!
//! The scenarios run the built binary, like a user.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_uring::Address;

#[path = "../../src/nbd_disk.rs"]
mod nbd_disk;

pub use nbd_disk::{NbdDisk, done};

/// The command.
pub fn fieldstone(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn run(args: &[&str]) -> Output {
    fieldstone(args).output().expect("the command starts")
}

/// Runs the command, which must succeed, and returns its stdout.
pub fn ok(args: &[&str]) -> String {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Runs the command, which must fail with exit code 1, and returns its stderr.
pub fn fails(args: &[&str]) -> String {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// The JSON that the command prints.
pub fn json(args: &[&str]) -> serde_json::Value {
    let text = ok(args);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
}

/// A pool in a temporary folder.
pub struct TestPool {
    pub temp: tempfile::TempDir,
}

impl TestPool {
    /// A pool of six small nodes.
    pub fn new(code: &str) -> Self {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let pool = Self { temp };
        ok(&["pool", "create", &pool.dir(), "--nodes", "6", "--code", code, "--node-size", "128M"]);
        pool
    }

    /// A pool with a volume `v` of 64 MiB.
    pub fn with_volume(code: &str) -> Self {
        let pool = Self::new(code);
        ok(&["volume", "create", &pool.volume("v"), "--size", "64M"]);
        pool
    }

    pub fn path(&self) -> PathBuf {
        self.temp.path().join("pool")
    }

    pub fn dir(&self) -> String {
        self.path().to_str().expect("UTF-8").to_owned()
    }

    pub fn node(&self, index: usize) -> PathBuf {
        self.path().join(format!("node.{index}"))
    }

    pub fn volume(&self, name: &str) -> String {
        format!("{}/{name}", self.dir())
    }

    pub fn socket(&self, name: &str) -> String {
        format!("unix:{}", self.temp.path().join(name).display())
    }

    /// Serves the volume `v`.
    pub fn serve(&self) -> Process {
        Process::start(&["serve", &self.volume("v"), "--nbd", &self.socket("v.sock")])
    }

    /// A connection to the volume `v`.
    pub fn connect(&self) -> NbdDisk {
        connect(&self.socket("v.sock"), "v")
    }

    /// The status of volume `v`, from its server or without one.
    pub fn status(&self) -> serde_json::Value {
        let report = json(&["status", &self.volume("v"), "--json"]);
        report["volumes"][0].clone()
    }
}

/// A connection to an export.
pub fn connect(address: &str, name: &str) -> NbdDisk {
    let address: Address = address.parse().expect("an address");
    NbdDisk::connect(&address, name).expect("the server answers")
}

/// A process of the command. Dropping it kills the process.
pub struct Process {
    child: Child,
    /// The first line that the process printed.
    pub line: String,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: PathBuf,
    _log: tempfile::TempDir,
}

impl Process {
    /// Starts the command and waits for its first line on stdout.
    pub fn start(args: &[&str]) -> Self {
        Self::try_start(args).unwrap_or_else(|stderr| panic!("{args:?} did not start: {stderr}"))
    }

    /// As [`Process::start`], but if the process ends instead, returns its stderr. It must have
    /// ended with exit code 1.
    pub fn try_start(args: &[&str]) -> Result<Self, String> {
        let mut process = Self::begin(args, None);
        process.line = process.next_line();
        if process.line.is_empty() {
            let status = process.child.wait().expect("it ended");
            let said = process.said();
            assert_eq!(status.code(), Some(1), "{said}");
            return Err(said);
        }
        Ok(process)
    }

    /// Starts the command, with `other_stderr` instead of a file, and waits for nothing.
    pub fn begin(args: &[&str], other_stderr: Option<Stdio>) -> Self {
        let log = tempfile::tempdir().expect("a temporary folder");
        let stderr = log.path().join("stderr");
        let file = std::fs::File::create(&stderr).expect("writable");
        let mut command = fieldstone(args);
        command.stdout(Stdio::piped());
        command.stderr(other_stderr.unwrap_or_else(|| file.into()));
        let mut child = command.spawn().expect("the command starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, line: String::new(), stdout, stderr, _log: log }
    }

    /// The next line of the process's stdout.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("readable");
        line
    }

    /// The text in the file for stderr.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.stderr).expect("readable")
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Sends SIGTERM. The process must end with success. Returns its stderr.
    pub fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().expect("kill exists");
        assert!(killed.success());
        self.expect_end();
        self.said()
    }

    /// Waits until the process has ended, which must be with success.
    pub fn expect_end(&mut self) {
        let status = self.wait_end();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Waits until the process has ended, at most 30 s.
    pub fn wait_end(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The expected contents of a device, block by block.
pub struct Model {
    versions: Vec<u32>,
    random: u64,
}

pub const BLOCK: usize = 4096;

impl Model {
    pub fn new(blocks: usize, seed: u64) -> Self {
        Self { versions: vec![0; blocks], random: seed }
    }

    fn next(&mut self) -> u64 {
        // Xorshift (Marsaglia 2003). Every seed but 0 is good.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn content(block: usize, version: u32) -> Vec<u8> {
        if version == 0 {
            return vec![0; BLOCK];
        }
        let word = (block as u64) << 32 | u64::from(version);
        let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..BLOCK as u64 / 8).flat_map(|at| (word ^ at).to_le_bytes()).collect()
    }

    /// Writes `count` runs of 1 to 16 blocks at random places, one after the other.
    pub fn write(&mut self, disk: &mut NbdDisk, count: usize) {
        for _ in 0..count {
            let blocks = 1 + self.next() as usize % 16;
            let first = self.next() as usize % (self.versions.len() - blocks);
            let mut data = Vec::new();
            for block in first..first + blocks {
                self.versions[block] += 1;
                data.extend(Self::content(block, self.versions[block]));
            }
            disk.client().write((first * BLOCK) as u64, Bytes::from(data), 0);
            done(disk.next_reply().expect("answered"), "write", 0).expect("written");
        }
    }

    /// Reads the whole device and compares it.
    pub fn check(&self, disk: &mut NbdDisk) {
        const RUN: usize = 256;
        for first in (0..self.versions.len()).step_by(RUN) {
            let blocks = RUN.min(self.versions.len() - first);
            disk.client().read((first * BLOCK) as u64, (blocks * BLOCK) as u32, 0);
            let reply = disk.next_reply().expect("answered");
            let data = done(reply, "read", (first * BLOCK) as u64).expect("readable");
            for (at, found) in data.chunks(BLOCK).enumerate() {
                let block = first + at;
                let expected = Self::content(block, self.versions[block]);
                assert!(found == expected, "block {block} differs");
            }
        }
    }
}

/// Waits until `done` returns true, at most 30 s.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Changes one byte of a file.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("readable");
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).expect("writable");
}
