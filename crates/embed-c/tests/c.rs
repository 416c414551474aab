//! Tests the library from C: compiles the test program and the example with the machine's C
//! compiler, against the shared and the static library, and runs them.
//!
//! `CC` and `CXX` name other compilers than `cc` and `c++`. `CFLAGS` adds options to C programs:
//! with `CFLAGS=-fsanitize=address` they run under AddressSanitizer. Without a compiler, a test
//! prints `skipped: no C compiler` and passes. So a machine that has only Rust can run all tests.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use fieldstone_embed::{Device, Options};
use fieldstone_server::pool::{self, Sizes};
use fieldstone_server::running::RunningPool;
use fieldstone_server::runtime::RuntimeOptions;
use tempfile::TempDir;

/// The system libraries that the static library needs, from `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The folder of the libraries. Cargo does not build a `cdylib` or `staticlib` for an integration
/// test. `make unit` builds them and names their folder in `FIELDSTONE_LIBRARIES`. Otherwise the
/// first call here builds the package.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(built) = env::var_os("FIELDSTONE_LIBRARIES") {
            return built.into();
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
        let mut cargo = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        cargo.args(["build", "--locked", "--package", env!("CARGO_PKG_NAME"), "--target-dir"]);
        run(cargo.arg(target).current_dir(here("")).env_remove("CARGO_BUILD_TARGET"));
        target.join("debug")
    })
}

/// The name of a compiler, if it runs.
fn compiler(variable: &str, default: &str) -> Option<String> {
    let name = env::var(variable).unwrap_or_else(|_| default.to_owned());
    let found = Command::new(&name).arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        println!("skipped: no {} compiler", if variable == "CC" { "C" } else { "C++" });
    }
    found.then_some(name)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    output
}

#[derive(Clone, Copy, Debug)]
enum Link {
    Shared,
    Static,
}

/// Compiles a program with strict C warnings as errors. Returns its path.
fn build(cc: &str, source: &Path, link: Link, folder: &TempDir) -> PathBuf {
    let program = folder.path().join(format!("{link:?}"));
    let mut command = Command::new(cc);
    command.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-pedantic"]);
    command.args(["-Werror", "-O1", "-g", "-pthread"]);
    command.args(env::var("CFLAGS").unwrap_or_default().split_whitespace());
    command.arg(source).arg("-I").arg(here("include")).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            command.arg("-L").arg(libraries()).arg("-lfieldstone_block");
            command.arg(format!("-Wl,-rpath,{}", libraries().display()));
        }
        Link::Static => {
            command.arg(libraries().join("libfieldstone_block.a")).args(SYSTEM_LIBRARIES);
            if fieldstone_fpga::simulated::IS_BUILT {
                command.args(["-lstdc++", "-llz4", "-lz"]);
            }
        }
    }
    run(&mut command);
    program
}

#[test]
fn everything_works_from_c() {
    let Some(cc) = compiler("CC", "cc") else { return };
    let folder = TempDir::new().expect("room for temporary files");
    for link in [Link::Shared, Link::Static] {
        let program = build(&cc, &here("tests/c/block.c"), link, &folder);
        let output = run(Command::new(program).arg(folder.path()));
        let text = String::from_utf8(output.stdout).expect("the program prints ASCII");
        let last = text.lines().last().expect("it prints its counts");
        let checks: u32 = last.split(' ').next().and_then(|n| n.parse().ok()).expect("a count");
        assert!(checks > 150 && last.ends_with(" 0 failed"), "{text}");
    }
}

/// Makes a pool with a volume of 4 MiB, of which 5 bytes are not zero. Returns its path.
fn volume(folder: &TempDir) -> String {
    let path = folder.path().join("pool");
    let sizes = Sizes { node_bytes: Some(64 << 20), overcommit: true };
    let profile = "rs:2+1".parse().expect("a profile");
    let ways = (pool::Strategy::Flat, pool::Encode::Client);
    let pool = pool::create(&path, 3, profile, ways, sizes);
    let running = RunningPool::with_pool(pool.expect("created"), &RuntimeOptions::offline(&[]));
    let running = running.expect("it runs");
    running.create_volume("v", 4 << 20, None, false).expect("created");
    running.finish().expect("closed");
    let volume = path.join("v").display().to_string();
    let device = Device::open(&volume, &Options::default()).expect("it opens");
    device.write(1_000_001, b"stone").expect("written");
    device.close().expect("stable");
    volume
}

#[test]
fn the_example_counts_bytes() {
    let Some(cc) = compiler("CC", "cc") else { return };
    let folder = TempDir::new().expect("room for temporary files");
    let program = build(&cc, &here("examples/zero_check.c"), Link::Shared, &folder);
    let file = folder.path().join("disk");
    let mut bytes = vec![0; (9 << 20) + 512];
    for at in [0, 777, 262_144, (9 << 20) + 511] {
        bytes[at] = 7;
    }
    fs::write(&file, &bytes).expect("room for a file");
    let output = run(Command::new(&program).arg(format!("file:{}", file.display())));
    let text = String::from_utf8(output.stdout).expect("the program prints ASCII");
    assert_eq!(text, "4 of 9437696 bytes are not zero\n");
    let volume = volume(&folder);
    let output = run(Command::new(&program).arg(&volume));
    let text = String::from_utf8(output.stdout).expect("the program prints ASCII");
    assert_eq!(text, "5 of 4194304 bytes are not zero\n");
    let refused = Command::new(&program).arg("tape:0").output().expect("it runs");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FIELDSTONE_BLOCK_BAD_TARGET"));
}

#[test]
fn the_header_is_also_cpp() {
    let Some(cxx) = compiler("CXX", "c++") else { return };
    let folder = TempDir::new().expect("room for temporary files");
    let source = folder.path().join("header.cpp");
    let text = "#include <fieldstone_block.h>\n#include <fieldstone_block.h>\n\
                int main() { return fieldstone_block_version() == nullptr; }\n";
    fs::write(&source, text).expect("room for a file");
    let program = folder.path().join("header");
    let mut command = Command::new(cxx);
    command.args(["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
    command.arg(&source).arg("-I").arg(here("include")).arg("-o").arg(&program);
    command.arg("-L").arg(libraries()).arg("-lfieldstone_block");
    run(command.arg(format!("-Wl,-rpath,{}", libraries().display())));
    run(&mut Command::new(program));
}

/// The names `fieldstone_…` before a bracket, after `before` in their line. Skips comment lines.
fn functions(text: &str, before: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let (_, rest) = line.split_once(before)?;
        let (name, _) = rest[rest.find("fieldstone_")?..].split_once('(')?;
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        plain.then(|| name.to_owned())
    };
    let code = text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    code.filter_map(name).collect()
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = fs::read_to_string(here("include/fieldstone_block.h")).expect("the header");
    let declared = functions(&header, "");
    let mut exported = BTreeSet::new();
    for file in fs::read_dir(here("src")).expect("there are sources") {
        let source = fs::read_to_string(file.expect("a file").path()).expect("a source");
        exported.extend(functions(&source, "extern \"C\" fn "));
    }
    assert_eq!(declared, exported);
    assert!(declared.len() > 15);
    // The C test calls every function, so a wrong declaration makes the test fail.
    let test = fs::read_to_string(here("tests/c/block.c")).expect("the test program");
    for name in &declared {
        assert!(test.contains(&format!("{name}(")), "{name} is not tested");
    }
}
