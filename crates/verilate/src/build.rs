//! The build-script half: designs through Verilator and the C++ compiler into static libraries.
//!
//! A list of designs is a TOML file:
//!
//! ```toml
//! [[design]]
//! name = "crush_ln"                  # of the static in Rust, in upper case
//! top = "crush_ln"                   # the module; the same as the name if left out
//! files = ["../crush_ln.sv"]         # relative to the list, packages before their users
//! parameters = { LANES = 16 }        # numbers, or strings given to Verilator as they are
//! coverage = true                    # count lines; also switches assertions on
//! debug_assertions = true            # check assertions, in debug builds only
//! trace = true                       # can write waves
//!
//! # Sources of others, in a Python package beside Verilator's. Such a design is not linted.
//! package = "pythondata_cpu_cv32e40p"
//! package_files = ["system_verilog/rtl/include/cv32e40p_pkg.sv"]   # before `files`
//! ```
//!
//! A design is built again only if its sources,
//! its entry, or the Verilator have changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde::Deserialize;

pub use crate::verilator::{BuildError, or_exit};
use crate::verilator::{Verilator, only_checks};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    design: Vec<Entry>,
}

#[derive(Deserialize, Hash)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    top: Option<String>,
    files: Vec<PathBuf>,
    #[serde(default)]
    parameters: BTreeMap<String, Parameter>,
    #[serde(default)]
    coverage: bool,
    #[serde(default)]
    debug_assertions: bool,
    #[serde(default)]
    trace: bool,
    package: Option<PathBuf>,
    #[serde(default)]
    package_files: Vec<PathBuf>,
}

impl Entry {
    /// True if assertions are checked.
    fn is_checked(&self) -> bool {
        self.coverage || (self.debug_assertions && is_debug())
    }
}

#[derive(Deserialize, Hash)]
#[serde(untagged)]
enum Parameter {
    Number(i64),
    Text(String),
}

/// The whole build script of a unit of RTL: builds the designs of its bench, in `tb/designs.toml`,
/// if the feature `verilator` is on. Ends the script with the error if there is one.
pub fn unit() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_VERILATOR").is_some() {
        // To optimize a design well takes twice as long, and a bench of the tests is then faster by
        // a fifth only.
        let opt_level = if is_debug() { 1 } else { DEVICE_OPT_LEVEL };
        or_exit(designs_with("tb/designs.toml".as_ref(), opt_level));
    }
}

/// True if the profile of the build is for tests.
fn is_debug() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "debug")
}

/// How much of the C++ compiler's work a design gets that runs in programs.
const DEVICE_OPT_LEVEL: u32 = 2;

/// Builds every design of the list, and links the libraries into the crate of the calling build
/// script. Writes `designs.rs`, with one static per design, to the crate's output folder.
pub fn designs(list: impl AsRef<Path>) -> Result<(), BuildError> {
    designs_with(list.as_ref(), DEVICE_OPT_LEVEL)
}

fn designs_with(path: &Path, opt_level: u32) -> Result<(), BuildError> {
    println!("cargo:rerun-if-changed={}", path.display());
    let list: List = toml::from_str(&read(path)?)
        .map_err(|error| BuildError::List { path: path.to_owned(), error: error.to_string() })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let mut rust = String::new();
    list.design.iter().for_each(|entry| write_static(&mut rust, entry));
    write(&out.join("designs.rs"), &rust)?;
    if only_checks() {
        return Ok(());
    }
    let verilator = Verilator::find()?;
    for entry in &list.design {
        verilator.build(entry, folder, &out, opt_level)?;
    }
    Ok(())
}

impl Verilator {
    fn build(
        &self,
        entry: &Entry,
        folder: &Path,
        out: &Path,
        opt_level: u32,
    ) -> Result<(), BuildError> {
        let mut files: Vec<PathBuf> = Vec::new();
        if let Some(package) = &entry.package {
            let package = self.package(package)?;
            files.extend(entry.package_files.iter().map(|file| package.join(file)));
        }
        files.extend(entry.files.iter().map(|file| folder.join(file)));
        let mut hasher = DefaultHasher::new();
        entry.hash(&mut hasher);
        opt_level.hash(&mut hasher);
        let version = self.version_file();
        println!("cargo:rerun-if-changed={}", version.display());
        read(&version)?.hash(&mut hasher);
        SHIM_VERSION.hash(&mut hasher);
        for file in &files {
            println!("cargo:rerun-if-changed={}", file.display());
            read(file)?.hash(&mut hasher);
        }
        let stamp = format!("{:016x}", hasher.finish());
        let work = out.join(&entry.name);
        let stamp_file = out.join(format!("{}.stamp", entry.name));
        let library = format!("verilated_{}", entry.name);
        if fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
            println!("cargo:rustc-link-search=native={}", out.display());
            println!("cargo:rustc-link-lib=static={library}");
            return Ok(());
        }
        let _ = fs::remove_dir_all(&work);
        self.verilate(entry, &files, &work)?;
        let prefix = format!("V{}", entry.name);
        let header_path = work.join(format!("{prefix}.h"));
        let shim = shim(entry, &prefix, &ports(&read(&header_path)?));
        write(&work.join("shim.cpp"), &shim)?;
        self.compile(&entry.name, &work, &library, opt_level)?;
        write(&stamp_file, &stamp)
    }

    fn verilate(&self, entry: &Entry, files: &[PathBuf], work: &Path) -> Result<(), BuildError> {
        let mut command = Command::new(&self.program);
        command.args(["--cc", "-O3", "--x-assign", "unique", "--x-initial", "unique", "-Wall"]);
        command.args(["--timescale", "1ns/1ns", "--output-split", "20000"]);
        command.arg(if entry.is_checked() { "--assert" } else { "--no-assert" });
        if entry.coverage {
            command.arg("--coverage-line");
        }
        if entry.trace {
            command.args(["--trace-fst", "--trace-structs"]);
        }
        if entry.package.is_some() {
            command.args(["-Wno-lint", "-Wno-style", "-Wno-UNOPTFLAT"]);
        }
        for (name, value) in &entry.parameters {
            match value {
                Parameter::Number(value) => command.arg(format!("-G{name}={value}")),
                Parameter::Text(value) => command.arg(format!("-G{name}={value}")),
            };
        }
        let top = entry.top.as_ref().unwrap_or(&entry.name);
        command.args(["--prefix", &format!("V{}", entry.name), "--top-module", top]);
        command.arg("--Mdir").arg(work).args(files);
        let failed = |output: String| BuildError::Verilator { design: entry.name.clone(), output };
        let answer = command.output().map_err(|error| failed(error.to_string()))?;
        if answer.status.success() {
            return Ok(());
        }
        let (out, err) =
            (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        Err(failed(format!("{out}{err}")))
    }

    /// Compiles Verilator's output for one design. The files `…__Slow.cpp`, nearly half of it, have
    /// what is executed once, at the start or when waves begin. They are not optimized.
    fn compile(
        &self,
        name: &str,
        work: &Path,
        library: &str,
        opt_level: u32,
    ) -> Result<(), BuildError> {
        let list = |error| BuildError::File { path: work.to_owned(), error };
        let (mut slow, mut fast) = (Vec::new(), Vec::new());
        for file in fs::read_dir(work).map_err(list)? {
            let file = file.map_err(list)?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".cpp") {
                let sources = if name.ends_with("__Slow.cpp") { &mut slow } else { &mut fast };
                sources.push((file.metadata().map_err(list)?.len(), name));
            }
        }
        let failed = |error| BuildError::Compiler { design: name.to_owned(), error };
        let mut build = self.compiler();
        add_batches(build.include(work).opt_level(0), slow, work, "slow")?;
        let objects = build.try_compile_intermediates().map_err(failed)?;
        let mut build = self.compiler();
        build.opt_level(opt_level);
        add_batches(build.include(work).objects(objects), fast, work, "fast")?;
        build.try_compile(library).map_err(failed)
    }
}

/// Adds source files of a folder, given as (bytes, name), to a build.
fn add_batches(
    build: &mut cc::Build,
    sources: Vec<(u64, String)>,
    folder: &Path,
    kind: &str,
) -> Result<(), BuildError> {
    for (index, files) in batches(sources).iter().enumerate() {
        let lines: String = files.iter().map(|file| format!("#include \"{file}\"\n")).collect();
        let batch = folder.join(format!("{kind}_{index}.cc"));
        write(&batch, &lines)?;
        build.file(batch);
    }
    Ok(())
}

/// C++ that one run of the compiler takes, if it is more than one file.
const BATCH_BYTES_MAX: u64 = 512 << 10;

/// Groups source files, given as (bytes, name), for one run of the compiler each. Verilator writes
/// many small files, and for each of them the compiler would read the same headers, which takes
/// longer than the file itself.
fn batches(mut sources: Vec<(u64, String)>) -> Vec<Vec<String>> {
    sources.sort_unstable_by(|a, b| b.cmp(a));
    let mut batches: Vec<(u64, Vec<String>)> = Vec::new();
    for (bytes, name) in sources {
        match batches.last_mut() {
            Some((sum, batch)) if *sum + bytes <= BATCH_BYTES_MAX => {
                *sum += bytes;
                batch.push(name);
            }
            _ => batches.push((bytes, vec![name])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// A port in Verilator's header.
struct HeaderPort {
    name: String,
    bits: u32,
    is_input: bool,
}

/// The ports in Verilator's header. Lines are like `VL_IN8(&clk_i,0,0);` and
/// `VL_OUTW(&data_o,511,0,16);`.
fn ports(header: &str) -> Vec<HeaderPort> {
    header
        .lines()
        .filter_map(|line| {
            let (kind, rest) = line.trim().strip_prefix("VL_")?.split_once('(')?;
            let is_input = kind.starts_with("IN");
            if !is_input && !kind.starts_with("OUT") {
                return None;
            }
            let mut fields = rest.split([',', ')']);
            let name = fields.next()?.trim_start_matches('&').to_owned();
            let high: u32 = fields.next()?.trim().parse().ok()?;
            let low: u32 = fields.next()?.trim().parse().ok()?;
            Some(HeaderPort { name, bits: high - low + 1, is_input })
        })
        .collect()
}

/// This number changes whenever the shim or the flags change, so that old libraries are not used
/// for new ones.
const SHIM_VERSION: u32 = 5;

fn shim(entry: &Entry, prefix: &str, ports: &[HeaderPort]) -> String {
    let name = &entry.name;
    let mut list = String::new();
    for (index, HeaderPort { name, bits, is_input }) in ports.iter().enumerate() {
        let (value, input) = (format!("&model->top.{name}"), u32::from(*is_input));
        let _ = writeln!(
            list,
            "    case {index}: *port = {{\"{name}\", {value}, {bits}, {input}}}; return 1;"
        );
    }
    let coverage = if entry.coverage {
        format!(
            "void {name}_write_coverage(void* raw, const char* path) {{
    static_cast<GeneratedModel*>(raw)->context.coveragep()->write(path);
}}"
        )
    } else {
        String::new()
    };
    let (trace_include, trace_member, trace_open, trace_dump) = if entry.trace {
        (
            "#include \"verilated_fst_c.h\"",
            "VerilatedFstC waves;",
            "    auto* model = static_cast<GeneratedModel*>(raw);
    model->top.trace(&model->waves, 99);
    model->waves.open(path);
    return model->waves.isOpen();",
            "    static_cast<GeneratedModel*>(raw)->waves.dump(time);",
        )
    } else {
        ("", "", "    (void)raw; (void)path; return 0;", "    (void)raw; (void)time;")
    };
    let trace_on = if entry.trace { "context.traceEverOn(true);" } else { "" };
    let trace_close = if entry.trace { "model->waves.close();" } else { "" };
    format!(
        "// Written by fieldstone-verilate.
#include \"{prefix}.h\"
#include \"verilated.h\"
{trace_include}
#include <bit>
#include <cstdint>
#include <new>

static_assert(std::endian::native == std::endian::little);

namespace {{
struct GeneratedModel {{
    VerilatedContext context;
    {prefix} top;
    {trace_member}
    GeneratedModel() : top(prepare()) {{}}
    VerilatedContext* prepare() {{
        context.randReset(2);
        context.randSeed(1);
        context.assertOn(false);
        {trace_on}
        return &context;
    }}
}};
struct GeneratedPort {{
    const char* name;
    void* data;
    uint32_t bits;
    uint32_t is_input;
}};
}}

extern \"C\" {{
void* {name}_new() {{ return new (std::nothrow) GeneratedModel; }}
void {name}_free(void* raw) {{
    auto* model = static_cast<GeneratedModel*>(raw);
    model->top.final();
    {trace_close}
    delete model;
}}
void {name}_eval(void* raw) {{ static_cast<GeneratedModel*>(raw)->top.eval(); }}
void {name}_assert_on(void* raw) {{ static_cast<GeneratedModel*>(raw)->context.assertOn(true); }}
int {name}_get_port(void* raw, int index, GeneratedPort* port) {{
    auto* model = static_cast<GeneratedModel*>(raw);
    switch (index) {{
{list}    default: return 0;
    }}
}}
{coverage}
int {name}_open_trace(void* raw, const char* path) {{
{trace_open}
}}
void {name}_dump_trace(void* raw, uint64_t time) {{
{trace_dump}
}}
}}
"
    )
}

fn write_static(rust: &mut String, entry: &Entry) {
    let name = &entry.name;
    let upper = name.to_uppercase();
    let (declared, given) = if entry.coverage {
        (
            format!("    fn {name}_write_coverage(model: *mut c_void, path: *const c_char);\n"),
            format!("Some({name}_write_coverage)"),
        )
    } else {
        (String::new(), "None".to_owned())
    };
    let _ = write!(
        rust,
        "/// The verilated design `{name}`.
pub static {upper}: fieldstone_verilate::Design = {{
    use std::ffi::{{c_char, c_int, c_void}};
    use fieldstone_verilate::RawPort;
    // SAFETY: the shim that was written beside this declares them so.
    unsafe extern \"C\" {{
        fn {name}_new() -> *mut c_void;
        fn {name}_free(model: *mut c_void);
        fn {name}_eval(model: *mut c_void);
        fn {name}_assert_on(model: *mut c_void);
        fn {name}_get_port(model: *mut c_void, index: c_int, port: *mut RawPort) -> c_int;
{declared}        fn {name}_open_trace(model: *mut c_void, path: *const c_char) -> c_int;
        fn {name}_dump_trace(model: *mut c_void, time: u64);
    }}
    fieldstone_verilate::Design {{
        name: \"{name}\",
        new: {name}_new,
        free: {name}_free,
        eval: {name}_eval,
        assert_on: {name}_assert_on,
        get_port: {name}_get_port,
        write_coverage: {given},
        open_trace: {name}_open_trace,
        dump_trace: {name}_dump_trace,
    }}
}};
"
    );
}

fn read(path: &Path) -> Result<String, BuildError> {
    fs::read_to_string(path).map_err(|error| BuildError::File { path: path.to_owned(), error })
}

fn write(path: &Path, text: &str) -> Result<(), BuildError> {
    fs::write(path, text).map_err(|error| BuildError::File { path: path.to_owned(), error })
}
