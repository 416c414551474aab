//! A mnemonic and its operands become an operation.
//!
//! Each mnemonic takes its modifiers in the order of the manual, and may leave none. The width of
//! a register must be that of the type, but a load, a store and a conversion take wider registers.

mod compute;
mod control;
mod fields;
mod transfer;

use super::operation::{Operation, Place, Slot, Space};
use super::parse::{Globals, fit};
use super::reader::Operand;
use super::scope::{Scope, Variable};
use super::types::Type;

/// What is decoded, or what is wrong with it.
type Decoded<T> = Result<T, String>;

/// Decodes an instruction. Branches have labels for targets.
///
/// # Errors
///
/// The instruction is not of the subset: says why.
pub(super) fn decode(
    scope: &mut Scope,
    globals: &Globals,
    mnemonic: &str,
    operands: &[Operand<'_>],
) -> Decoded<Operation> {
    let mut parts = mnemonic.split('.');
    let name = parts.next().unwrap_or_default();
    let modifiers: Vec<&str> = parts.collect();
    let mut decoder = Decoder { scope, globals, operands, modifiers: &modifiers };
    let found = compute::decode(name, &mut decoder).or_else(|| fields::decode(name, &mut decoder));
    let found = found.or_else(|| transfer::decode(name, &mut decoder));
    let found = found.or_else(|| control::decode(name, &mut decoder));
    let operation = found.unwrap_or_else(|| Err("unknown instruction".to_owned()));
    let operation = operation.and_then(|operation| match decoder.modifiers.first() {
        Some(modifier) => Err(format!("unknown modifier .{modifier}")),
        None => Ok(operation),
    });
    operation.map_err(|message| format!("{mnemonic}: {message}"))
}

/// An instruction that is being decoded.
struct Decoder<'d> {
    scope: &'d mut Scope,
    globals: &'d Globals,
    operands: &'d [Operand<'d>],
    /// Those that are not taken yet.
    modifiers: &'d [&'d str],
}

impl<'d> Decoder<'d> {
    /// Takes the next modifier.
    fn modifier(&mut self) -> Decoded<&'d str> {
        let (&first, rest) = self.modifiers.split_first().ok_or("a modifier is missing")?;
        self.modifiers = rest;
        Ok(first)
    }

    /// Takes the next modifier if it is one of some.
    fn accept(&mut self, names: &[&str]) -> Option<&'d str> {
        let first = self.modifiers.first().filter(|first| names.contains(first));
        first.and_then(|_| self.modifier().ok())
    }

    /// Takes a modifier that must be there.
    fn expect(&mut self, name: &str) -> Decoded<()> {
        let found = self.modifier()?;
        if found == name { Ok(()) } else { Err(format!("unknown modifier .{found}")) }
    }

    /// Takes the type, which is one of some.
    fn type_of(&mut self, allowed: &[Type]) -> Decoded<Type> {
        let name = self.modifier()?;
        let found = Type::named(name).filter(|found| allowed.contains(found));
        found.ok_or_else(|| format!("the instruction has no type .{name}"))
    }

    /// Checks the number of operands.
    fn count(&self, count: usize) -> Decoded<()> {
        let found = self.operands.len();
        if found == count {
            Ok(())
        } else {
            Err(format!("{found} operands, but the instruction has {count}"))
        }
    }

    fn operand(&self, index: usize) -> Decoded<&'d Operand<'d>> {
        self.operands.get(index).ok_or_else(|| "an operand is missing".to_owned())
    }

    /// The cell of a register of a width in bits, or of one that is wider.
    fn register(&mut self, name: &str, bits: u32, wider: bool) -> Decoded<(Slot, u32)> {
        let Some((slot, found)) = self.scope.register(name) else {
            return Err(format!("{name} is no register"));
        };
        let fits = found == bits || wider && found > bits && bits > 1;
        if !fits {
            return Err(format!("{name} has {found} bits in the place of {bits}"));
        }
        Ok((slot, found))
    }

    /// The cell of a register that gets a value of a type.
    fn destination(&mut self, index: usize, of: Type) -> Decoded<Slot> {
        match self.operand(index)? {
            Operand::Name(name) => Ok(self.register(name, of.bits(), false)?.0),
            _ => Err(format!("operand {} must be a register", index + 1)),
        }
    }

    /// The cell of a register or an immediate with a value of a type.
    fn source(&mut self, index: usize, of: Type) -> Decoded<Slot> {
        let operand = self.operand(index)?;
        Ok(self.value(operand, of, false)?.0)
    }

    /// The cell and the width of a register or an immediate.
    fn value(&mut self, operand: &Operand<'_>, of: Type, wider: bool) -> Decoded<(Slot, u32)> {
        match operand {
            Operand::Name(name) => self.register(name, of.bits(), wider),
            Operand::Number(value) if of == Type::Pred => {
                Ok((self.scope.constant(u64::from(*value != 0)), 1))
            }
            Operand::Number(value) => Ok((self.scope.constant(fit(*value, of)?), of.bits())),
            _ => Err("an operand must be a register or an immediate".to_owned()),
        }
    }

    /// The cell of a predicate, and whether it is negated.
    fn predicate(&mut self, index: usize) -> Decoded<(Slot, bool)> {
        match self.operand(index)? {
            Operand::Not(name) => Ok((self.register(name, 1, false)?.0, true)),
            _ => Ok((self.source(index, Type::Pred)?, false)),
        }
    }

    /// An address in a state space.
    fn place(&mut self, index: usize, space: Space, of: Type, count: u32) -> Decoded<Place> {
        let Operand::Address(name, offset) = *self.operand(index)? else {
            return Err(format!("operand {} must be an address", index + 1));
        };
        let place = |base, offset| Place { space, base, offset, element: of.bytes(), count };
        let variable = self.scope.variables.get(name).copied();
        let base = match (variable, space) {
            (Some(Variable::Param { offset: start, bytes }), Space::Param) => {
                let end = offset.checked_add(i64::from(of.bytes() * count));
                let inside = offset >= 0 && end.is_some_and(|end| end <= i64::from(bytes));
                if !inside || offset % i64::from(of.bytes()) != 0 {
                    return Err(format!("the access is not inside of {name}, or misaligned"));
                }
                u64::from(start)
            }
            (Some(Variable::Shared(start)), Space::Shared)
            | (Some(Variable::Const(start)), Space::Const)
            | (Some(Variable::Global(start)), Space::Global) => start,
            (Some(_), _) => return Err(format!("{name} is in another state space")),
            (None, _) => return self.address(name, space).map(|base| place(base, offset)),
        };
        Ok(place(self.scope.constant(base), offset))
    }

    /// The cell of a register that holds an address.
    fn address(&mut self, name: &str, space: Space) -> Decoded<Slot> {
        match (self.scope.register(name), space) {
            (Some(_), Space::Param) => Err("parameters have no addresses in registers".to_owned()),
            (Some((slot, 64)), _) | (Some((slot, 32)), Space::Shared | Space::Const) => Ok(slot),
            (Some((_, bits)), _) => Err(format!("{name} has {bits} bits, and is no address")),
            (None, _) => Err(format!("{name} is not declared")),
        }
    }
}
