//! The text of a module becomes its kernels and tables.

use std::sync::Arc;

use super::body;
use super::fault::ParseError;
use super::kernel::{GLOBAL_TABLES, Module, Table, Tables, aligned};
use super::reader::Reader;
use super::token::Kind;
use super::types::{STORED, Type, ones};

/// The size of constant memory in bytes.
const MAX_CONSTANTS: u64 = 64 << 10;
/// The most bytes of a table in global memory.
const MAX_TABLE: u64 = 1 << 28;
/// A gap between tables in bytes, so that an access past the end of one is found.
const GAP: u64 = 64;

/// What a module declares before its kernels.
#[derive(Clone, Default)]
pub(super) struct Globals {
    /// The version of PTX and the architecture, such as 74 and 80 for 7.4 and `sm_80`.
    pub version: u32,
    pub target: u32,
    pub tables: Tables,
    /// The names of dynamic shared memory, and its alignment in bytes.
    pub dynamic: Vec<String>,
    pub dynamic_align: u64,
}

/// Reads a module.
///
/// # Errors
///
/// The text is no PTX, or not of the subset.
pub(super) fn module(text: &str) -> Result<Module, ParseError> {
    let mut reader = Reader::new(text)?;
    let mut globals = header(&mut reader)?;
    let (text, mut kernels): (Arc<str>, Vec<super::Kernel>) = (text.into(), Vec::new());
    while !reader.is_empty() {
        let line = reader.line();
        match reader.word()? {
            ".visible" => {
                if !reader.accept_word(".entry") {
                    return Err(reader.unexpected("`.entry`"));
                }
                let kernel = body::kernel(&mut reader, &globals, &text)?;
                if kernels.iter().any(|known| known.name() == kernel.name()) {
                    let message = format!("the kernel {} is defined twice", kernel.name());
                    return Err(ParseError::new(line, message));
                }
                kernels.push(kernel);
            }
            ".extern" => dynamic(&mut reader, &mut globals)?,
            ".const" => {
                let next = end(&globals.tables.constants, 0);
                let table = table(&mut reader, &globals, next, MAX_CONSTANTS)?;
                globals.tables.constants.push(table);
            }
            ".global" => {
                let next = end(&globals.tables.globals, GLOBAL_TABLES);
                let table = table(&mut reader, &globals, next, GLOBAL_TABLES + (MAX_TABLE << 8))?;
                globals.tables.globals.push(table);
            }
            other => return Err(ParseError::new(line, format!("unknown directive {other}"))),
        }
    }
    Ok(Module { kernels })
}

/// Reads the version, the target and the size of addresses.
fn header(reader: &mut Reader<'_>) -> Result<Globals, ParseError> {
    let mut globals = Globals { dynamic_align: 16, ..Globals::default() };
    if !reader.accept_word(".version") {
        return Err(reader.unexpected("`.version`"));
    }
    let version = reader.digits()?;
    let parts = version.split_once('.').and_then(|(major, minor)| {
        Some((major.parse::<u8>().ok()?, minor.parse::<u8>().ok().filter(|&minor| minor < 10)?))
    });
    let Some((major, minor)) = parts else {
        return Err(reader.error(format!("{version} is no version")));
    };
    globals.version = u32::from(major) * 10 + u32::from(minor);
    if !reader.accept_word(".target") {
        return Err(reader.unexpected("`.target`"));
    }
    let target = reader.word()?;
    let digits = target.strip_prefix("sm_").map(|rest| rest.trim_end_matches(['a', 'f']));
    let Some(number) = digits.and_then(|digits| digits.parse().ok()) else {
        return Err(reader.error(format!("{target} is no target")));
    };
    globals.target = number;
    if !reader.accept_word(".address_size") || reader.small()? != 64 {
        return Err(reader.error("addresses must have `.address_size 64`"));
    }
    Ok(globals)
}

/// Reads `.shared .align A .b8 name[];`
fn dynamic(reader: &mut Reader<'_>, globals: &mut Globals) -> Result<(), ParseError> {
    if !reader.accept_word(".shared") {
        return Err(reader.unexpected("`.shared`"));
    }
    let (align, _, name) = variable(reader)?;
    reader.expect('[')?;
    reader.expect(']')?;
    reader.expect(';')?;
    if is_taken(globals, name) {
        return Err(reader.error(format!("{name} is declared twice")));
    }
    globals.dynamic_align = globals.dynamic_align.max(align);
    globals.dynamic.push(name.to_owned());
    Ok(())
}

fn is_taken(globals: &Globals, name: &str) -> bool {
    let tables = globals.tables.constants.iter().chain(&globals.tables.globals);
    globals.dynamic.iter().chain(tables.map(|table| &table.name)).any(|known| known == name)
}

/// Reads `.align A .type name`, whose alignment may be missing. Returns the alignment in bytes.
pub(super) fn variable<'a>(reader: &mut Reader<'a>) -> Result<(u64, Type, &'a str), ParseError> {
    let align = if reader.accept_word(".align") { Some(u64::from(reader.small()?)) } else { None };
    let of = memory_type(reader)?;
    let align = align.unwrap_or_else(|| u64::from(of.bytes()));
    if !align.is_power_of_two() || align < u64::from(of.bytes()) || align > 1024 {
        return Err(reader.error(format!("{align} is no alignment of .{}", of.name())));
    }
    Ok((align, of, reader.name()?))
}

/// Reads `.type name`, or `.type .ptr .global .align A name`.
pub(super) fn parameter<'a>(reader: &mut Reader<'a>) -> Result<(Type, &'a str), ParseError> {
    let of = memory_type(reader)?;
    if reader.accept_word(".ptr") {
        reader.accept_word(".global");
        if reader.accept_word(".align") && !reader.small()?.is_power_of_two() {
            return Err(reader.error("an alignment must be a power of two"));
        }
    }
    Ok((of, reader.name()?))
}

/// Reads the type of a variable.
fn memory_type(reader: &mut Reader<'_>) -> Result<Type, ParseError> {
    let word = reader.word()?;
    let of = word.strip_prefix('.').and_then(Type::named).filter(|of| STORED.contains(of));
    of.ok_or_else(|| reader.error(format!("{word} is no type of a variable")))
}

/// Where the next table may begin.
fn end(tables: &[Table], first: u64) -> u64 {
    GAP + tables.last().map_or(first, |table| table.start + table.bytes.len() as u64)
}

/// Reads a table: `.align A .type name[N] = {...};`, or a single value: `.type name = value;`.
/// Elements that are not given are zeros.
fn table(
    reader: &mut Reader<'_>,
    globals: &Globals,
    next: u64,
    limit: u64,
) -> Result<Table, ParseError> {
    let (align, of, name) = variable(reader)?;
    if is_taken(globals, name) {
        return Err(reader.error(format!("{name} is declared twice")));
    }
    let is_list = reader.accept('[');
    let count = if is_list { reader.small()? } else { 1 };
    if is_list {
        reader.expect(']')?;
    }
    let start = aligned(next, align);
    let size = u64::from(count) * u64::from(of.bytes());
    if size > MAX_TABLE || start + size > limit {
        return Err(reader.error(format!("the table {name} is too large")));
    }
    let mut bytes = Vec::new();
    if reader.accept('=') {
        let values = if is_list { list(reader, count)? } else { vec![reader.integer()?] };
        for value in values {
            let bits = fit(value, of).map_err(|message| reader.error(message))?;
            bytes.extend(&bits.to_le_bytes()[..of.bytes() as usize]);
        }
    }
    reader.expect(';')?;
    bytes.resize(size as usize, 0);
    Ok(Table { name: name.to_owned(), start, bytes })
}

/// Reads `{a, b, ...}`, with a number of values at most.
fn list(reader: &mut Reader<'_>, most: u32) -> Result<Vec<i128>, ParseError> {
    let mut values = Vec::new();
    reader.expect('{')?;
    loop {
        values.push(reader.integer()?);
        if values.len() > most as usize {
            return Err(reader.error(format!("the table has more than {most} values")));
        }
        if !reader.accept(',') {
            reader.expect('}')?;
            return Ok(values);
        }
    }
}

/// The bits of an immediate of a type.
///
/// # Errors
///
/// The type cannot hold it.
pub(super) fn fit(value: i128, of: Type) -> Result<u64, String> {
    let (least, bits) = (-(1_i128 << (of.bits() - 1)), of.bits());
    if !(least..1 << bits).contains(&value) {
        return Err(format!("{value} does not fit .{}", of.name()));
    }
    Ok(value as u64 & ones(bits))
}

/// Whether a token is a directive.
pub(super) fn is_directive(kind: Option<Kind<'_>>) -> bool {
    matches!(kind, Some(Kind::Word(word)) if word.starts_with('.'))
}
