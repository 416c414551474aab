//! The text of a kernel: its parameters, declarations, labels and instructions.

use std::collections::HashMap;
use std::sync::Arc;

use super::decode;
use super::fault::ParseError;
use super::kernel::{Declared, Kernel, SharedVariable, aligned};
use super::operation::{Guard, Instruction, Operation};
use super::parse::{self, Globals};
use super::reader::Reader;
use super::scope::{Scope, Variable};
use super::token::Kind;
use super::types::Type;

/// Where shared memory begins. It is not zero, so an address without its base is found out.
const SHARED_START: u64 = 0x400;
/// Where dynamic shared memory begins, at the earliest. That is past all shared variables and their
/// gaps.
const DYNAMIC_START: u64 = 1 << 30;
/// The most bytes of shared variables whose size is known.
const MAX_STATIC: u64 = 48 << 10;
/// A gap between shared variables in bytes, so that an access past the end of one is found.
const GAP: u64 = 64;
/// The most bytes of parameters.
const MAX_PARAMS: u32 = 4096;

/// What is read of a kernel.
struct Body {
    scope: Scope,
    code: Vec<Instruction>,
    opcodes: Vec<String>,
    opcode_numbers: HashMap<String, u32>,
    shared: Vec<SharedVariable>,
    params: Vec<Declared>,
    max_threads: Option<u32>,
    required_threads: Option<u32>,
}

/// Reads a kernel after `.entry`.
///
/// # Errors
///
/// It is not of the subset.
pub(super) fn kernel(
    reader: &mut Reader<'_>,
    globals: &Globals,
    text: &Arc<str>,
) -> Result<Kernel, ParseError> {
    let (line, name) = (reader.line(), reader.name()?);
    let dynamic = aligned(DYNAMIC_START, globals.dynamic_align);
    let mut body = Body {
        scope: scope(globals, dynamic),
        code: Vec::new(),
        opcodes: Vec::new(),
        opcode_numbers: HashMap::new(),
        shared: Vec::new(),
        params: Vec::new(),
        max_threads: None,
        required_threads: None,
    };
    if reader.accept('(') && !reader.accept(')') {
        body.parameters(reader)?;
    }
    body.directives(reader)?;
    reader.expect('{')?;
    while !reader.accept('}') {
        body.statement(reader, globals)?;
    }
    body.finish(reader)?;
    Ok(Kernel {
        name: name.to_owned(),
        text: Arc::clone(text),
        line,
        code: body.code,
        opcodes: body.opcodes,
        cells: body.scope.cells,
        names: body.scope.names,
        specials: body.scope.specials,
        params: body.params,
        shared: body.shared,
        dynamic: globals.dynamic.first().map(|name| (name.clone(), dynamic)),
        max_threads: body.max_threads,
        required_threads: body.required_threads,
        tables: Arc::new(globals.tables.clone()),
    })
}

/// The names that a kernel has from its module.
fn scope(globals: &Globals, dynamic: u64) -> Scope {
    let mut scope = Scope::default();
    for table in &globals.tables.constants {
        scope.variables.insert(table.name.clone(), Variable::Const(table.start));
    }
    for table in &globals.tables.globals {
        scope.variables.insert(table.name.clone(), Variable::Global(table.start));
    }
    for name in &globals.dynamic {
        scope.variables.insert(name.clone(), Variable::Shared(dynamic));
    }
    scope
}

impl Body {
    fn parameters(&mut self, reader: &mut Reader<'_>) -> Result<(), ParseError> {
        let mut offset = 0;
        loop {
            if !reader.accept_word(".param") {
                return Err(reader.unexpected("`.param`"));
            }
            let (of, name) = parse::parameter(reader)?;
            let bytes = of.bytes();
            if bytes < 4 {
                return Err(reader.error("a parameter must have 32 or 64 bits"));
            }
            offset = u32::next_multiple_of(offset, bytes);
            let variable = Variable::Param { offset, bytes };
            let known = self.scope.declare_variable(name, variable);
            known.map_err(|message| reader.error(message))?;
            self.params.push(Declared { name: name.to_owned(), bytes, offset });
            offset += bytes;
            if offset > MAX_PARAMS {
                return Err(reader.error(format!("more than {MAX_PARAMS} bytes of parameters")));
            }
            if !reader.accept(',') {
                return reader.expect(')');
            }
        }
    }

    /// Reads what a kernel says of its launches and its resources.
    fn directives(&mut self, reader: &mut Reader<'_>) -> Result<(), ParseError> {
        while parse::is_directive(reader.peek()) {
            match reader.word()? {
                ".maxntid" => self.max_threads = Some(threads(reader)?),
                ".reqntid" => self.required_threads = Some(threads(reader)?),
                ".minnctapersm" | ".maxnreg" => {
                    reader.small()?;
                }
                other => return Err(reader.error(format!("unknown directive {other}"))),
            }
        }
        Ok(())
    }

    fn statement(&mut self, reader: &mut Reader<'_>, globals: &Globals) -> Result<(), ParseError> {
        if let Some(Kind::Sign('@')) = reader.peek() {
            return self.instruction(reader, globals);
        }
        let (line, start) = (reader.line(), reader.start());
        let error = |message| ParseError::new(line, message);
        let word = reader.word()?;
        match word {
            ".reg" => self.registers(reader),
            ".shared" => self.shared(reader),
            _ if word.starts_with('.') => Err(error(format!("unknown directive {word}"))),
            _ if reader.accept(':') => {
                if reader.accept_word(".branchtargets") {
                    return self.targets(reader, word);
                }
                self.scope.define_label(word, self.code.len() as u32).map_err(error)
            }
            _ => self.operation(reader, globals, (Guard::Always, word, start, line)),
        }
    }

    /// Reads `.type %name<N>, %name, ...;`
    fn registers(&mut self, reader: &mut Reader<'_>) -> Result<(), ParseError> {
        let word = reader.word()?;
        let of = word.strip_prefix('.').and_then(Type::named);
        let Some(of) = of.filter(|of| *of == Type::Pred || of.bits() >= 16) else {
            return Err(reader.error(format!("{word} is no type of a register")));
        };
        loop {
            let name = reader.name()?;
            let declared = if reader.accept('<') {
                let count = reader.small()?;
                reader.expect('>')?;
                self.scope.declare_family(name, count, of)
            } else {
                self.scope.declare(name, of)
            };
            declared.map_err(|message| reader.error(message))?;
            if !reader.accept(',') {
                return reader.expect(';');
            }
        }
    }

    /// Reads `.align A .b8 name[SIZE];`
    fn shared(&mut self, reader: &mut Reader<'_>) -> Result<(), ParseError> {
        let (align, of, name) = parse::variable(reader)?;
        let mut bytes = u64::from(of.bytes());
        if reader.accept('[') {
            bytes *= u64::from(reader.small()?);
            reader.expect(']')?;
        }
        reader.expect(';')?;
        if bytes == 0 {
            return Err(reader.error(format!("{name} has no bytes")));
        }
        let used: u64 = self.shared.iter().map(|variable| variable.bytes as u64).sum();
        if used + bytes > MAX_STATIC {
            return Err(reader.error(format!("more than {MAX_STATIC} bytes of shared variables")));
        }
        let last = self.shared.last().map_or(SHARED_START, |last| last.start + last.bytes as u64);
        let start = aligned(last + GAP, align);
        let known = self.scope.declare_variable(name, Variable::Shared(start));
        known.map_err(|message| reader.error(message))?;
        self.shared.push(SharedVariable { name: name.to_owned(), start, bytes: bytes as usize });
        Ok(())
    }

    /// Reads a list of labels.
    fn targets(&mut self, reader: &mut Reader<'_>, name: &str) -> Result<(), ParseError> {
        let mut labels = vec![self.scope.label(reader.name()?)];
        while reader.accept(',') {
            labels.push(self.scope.label(reader.name()?));
        }
        reader.expect(';')?;
        if self.scope.lists.insert(name.to_owned(), labels).is_some() {
            return Err(reader.error(format!("the list {name} is defined twice")));
        }
        Ok(())
    }

    /// Reads an instruction from its guard on.
    fn instruction(
        &mut self,
        reader: &mut Reader<'_>,
        globals: &Globals,
    ) -> Result<(), ParseError> {
        let (line, start) = (reader.line(), reader.start());
        reader.expect('@')?;
        let negated = reader.accept('!');
        let name = reader.name()?;
        let slot = match self.scope.register(name) {
            Some((slot, 1)) => slot,
            Some(_) => return Err(ParseError::new(line, format!("{name} is no predicate"))),
            None => return Err(ParseError::new(line, format!("{name} is not declared"))),
        };
        let guard = if negated { Guard::Unless(slot) } else { Guard::If(slot) };
        let mnemonic = reader.word()?;
        self.operation(reader, globals, (guard, mnemonic, start, line))
    }

    /// Reads the operands of an instruction, and decodes it.
    fn operation(
        &mut self,
        reader: &mut Reader<'_>,
        globals: &Globals,
        (guard, mnemonic, start, line): (Guard, &str, usize, u32),
    ) -> Result<(), ParseError> {
        let mut operands = Vec::new();
        while !reader.accept(';') {
            if !operands.is_empty() {
                reader.expect(',')?;
            }
            operands.push(reader.operand()?);
        }
        let span = (start, reader.end());
        let operation = decode::decode(&mut self.scope, globals, mnemonic, &operands)
            .map_err(|message| ParseError::new(line, message))?;
        let opcode = self.opcode(mnemonic);
        self.code.push(Instruction { guard, operation, line, opcode, span });
        Ok(())
    }

    fn opcode(&mut self, mnemonic: &str) -> u32 {
        if let Some(&number) = self.opcode_numbers.get(mnemonic) {
            return number;
        }
        let number = self.opcodes.len() as u32;
        self.opcodes.push(mnemonic.to_owned());
        self.opcode_numbers.insert(mnemonic.to_owned(), number);
        number
    }

    /// Puts instructions in the place of labels. No path may lead past the last instruction.
    fn finish(&mut self, reader: &Reader<'_>) -> Result<(), ParseError> {
        let past = self.code.len() as u32;
        for instruction in &mut self.code {
            let line = instruction.line;
            let find = |label: u32| match self.scope.target(label) {
                Ok(target) if target < past => Ok(target),
                Ok(_) => Err(ParseError::new(line, "the target has no instruction")),
                Err(message) => Err(ParseError::new(line, message)),
            };
            match &mut instruction.operation {
                Operation::Branch { target } => *target = find(*target)?,
                Operation::BranchIndexed { targets, .. } => {
                    for target in targets {
                        *target = find(*target)?;
                    }
                }
                _ => {}
            }
        }
        use Operation::{Branch, BranchIndexed, End};
        let ends = self.code.last().is_some_and(|last| {
            let leaves = matches!(last.operation, Branch { .. } | BranchIndexed { .. } | End);
            leaves && matches!(last.guard, Guard::Always)
        });
        if ends { Ok(()) } else { Err(reader.error("the kernel can run past its end")) }
    }
}

/// Reads `N`, `N, 1` or `N, 1, 1`: the threads of a block.
fn threads(reader: &mut Reader<'_>) -> Result<u32, ParseError> {
    let count = reader.small()?;
    while reader.accept(',') {
        if reader.small()? != 1 {
            return Err(reader.error("blocks must have one dimension"));
        }
    }
    Ok(count)
}
