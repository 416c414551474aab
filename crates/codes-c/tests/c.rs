//! The library from C: compiles the test program, the example and the README's program with the
//! machine's C compiler, against the shared and the static library, and runs them.
//!
//! `CC` and `CXX` name other compilers than `cc` and `c++`. `CFLAGS` adds options to C programs:
//! with `CFLAGS=-fsanitize=address` they run under AddressSanitizer. Without a compiler a test says
//! `skipped: no C compiler` and passes: a machine with Rust alone can run all tests.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// System libraries that the static library needs, from `rustc --print native-static-libs`.
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

/// Compiles a program with strict warnings. Returns the path of the program.
fn build(cc: &str, source: &Path, link: Link, folder: &TempDir) -> PathBuf {
    let program = folder.path().join(format!("{link:?}"));
    let mut command = Command::new(cc);
    command.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-pedantic"]);
    command.args(["-Werror", "-O1", "-g", "-pthread"]);
    command.args(env::var("CFLAGS").unwrap_or_default().split_whitespace());
    command.arg(source).arg("-I").arg(here("include")).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            command.arg("-L").arg(libraries()).arg("-lfieldstone_codes");
            command.arg(format!("-Wl,-rpath,{}", libraries().display()));
        }
        Link::Static => {
            command.arg(libraries().join("libfieldstone_codes.a")).args(SYSTEM_LIBRARIES);
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
        let program = build(&cc, &here("tests/c/codes.c"), link, &folder);
        let output = run(&mut Command::new(program));
        let text = String::from_utf8(output.stdout).expect("the program prints ASCII");
        let last = text.lines().last().expect("it prints its counts");
        let checks: u32 = last.split(' ').next().and_then(|n| n.parse().ok()).expect("a count");
        assert!(checks > 30_000 && last.ends_with(" 0 failed"), "{text}");
    }
}

#[test]
fn the_example_repairs_what_it_loses() {
    let Some(cc) = compiler("CC", "cc") else { return };
    let folder = TempDir::new().expect("room for temporary files");
    let program = build(&cc, &here("examples/encode.c"), Link::Shared, &folder);
    let file = folder.path().join("file");
    for (profile, file_bytes, expected) in [
        (
            "zigzag:4+2",
            100_000,
            "repaired shard 3 from 62720 bytes, where 4 whole shards are 100352",
        ),
        ("clay:4+2", 1, "repaired shard 3 from 640 bytes, where 4 whole shards are 1024"),
        ("rs:6+3", 0, "repaired shard 5 from 0 bytes"),
    ] {
        fs::write(&file, vec![0x17; file_bytes]).expect("room for a file");
        let output = run(Command::new(&program).arg(&file).arg(profile));
        let text = String::from_utf8(output.stdout).expect("the program prints ASCII");
        assert!(text.contains(expected), "{profile}: {text}");
    }
    let refused = Command::new(&program).arg(&file).arg("raid:5").output().expect("it runs");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FIELDSTONE_BAD_PROFILE"));
}

#[test]
fn the_program_of_the_readme_does_what_it_says() {
    let Some(cc) = compiler("CC", "cc") else { return };
    let readme = fs::read_to_string(here("../../README.md")).expect("there is a README");
    let (_, rest) = readme.split_once("```c\n").expect("it has a program in C");
    let (program, rest) = rest.split_once("```").expect("which ends");
    assert!(!rest.contains("```c\n"), "one program in C is expected");
    let folder = TempDir::new().expect("room for temporary files");
    let source = folder.path().join("readme.c");
    fs::write(&source, program).expect("room for a file");
    for link in [Link::Shared, Link::Static] {
        let output = run(&mut Command::new(build(&cc, &source, link, &folder)));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "shards 1 and 5 are back\n");
    }
}

#[test]
fn the_header_is_also_cpp() {
    let Some(cxx) = compiler("CXX", "c++") else { return };
    let folder = TempDir::new().expect("room for temporary files");
    let source = folder.path().join("header.cpp");
    let text = "#include <fieldstone_codes.h>\n#include <fieldstone_codes.h>\n\
                int main() { return fieldstone_codes_version() == nullptr; }\n";
    fs::write(&source, text).expect("room for a file");
    let program = folder.path().join("header");
    let mut command = Command::new(cxx);
    command.args(["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
    command.arg(&source).arg("-I").arg(here("include")).arg("-o").arg(&program);
    command.arg("-L").arg(libraries()).arg("-lfieldstone_codes");
    run(command.arg(format!("-Wl,-rpath,{}", libraries().display())));
    run(&mut Command::new(program));
}

/// The words `fieldstone_…` that are followed by a bracket, after `before` in a line.
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
    let header = fs::read_to_string(here("include/fieldstone_codes.h")).expect("the header");
    let declared = functions(&header, "");
    let mut exported = BTreeSet::new();
    for file in fs::read_dir(here("src")).expect("there are sources") {
        let source = fs::read_to_string(file.expect("a file").path()).expect("a source");
        exported.extend(functions(&source, "extern \"C\" fn "));
    }
    assert_eq!(declared, exported);
    assert!(declared.len() > 15);
    // The C test uses every function, so a wrong declaration would fail.
    let test = fs::read_to_string(here("tests/c/codes.c")).expect("the test program");
    for name in &declared {
        assert!(test.contains(&format!("{name}(")), "{name} is not tested");
    }
}
