//! Moves, conversions, and what goes to memory and comes from it.

use super::{Decoded, Decoder};
use crate::interpreter::arithmetic::copy;
use crate::interpreter::operation::{Extension, Operation, Place, Slot, Space};
use crate::interpreter::reader::Operand;
use crate::interpreter::scope::Variable;
use crate::interpreter::types::{CONVERTED, STORED, Type, WORDS};

/// Decodes an instruction that this module knows.
pub(super) fn decode(name: &str, decoder: &mut Decoder<'_>) -> Option<Decoded<Operation>> {
    let d = decoder;
    Some(match name {
        "mov" => d.copy(),
        "cvt" => d.convert(),
        "cvta" => d.global_address(),
        "ld" => d.load(),
        "st" => d.store(),
        "atom" => d.atomic(true),
        "red" => d.atomic(false),
        "prefetch" => d.prefetch(),
        _ => return None,
    })
}

impl Decoder<'_> {
    fn copy(&mut self) -> Decoded<Operation> {
        let of = self.type_of(&[WORDS, &[Type::Pred]].concat())?;
        self.count(2)?;
        let (destination, source) = (self.operand(0)?, self.operand(1)?);
        match (destination, source) {
            (_, Operand::Vector(parts)) => {
                let (parts, bits) = self.parts(of, parts, false)?;
                let count = of.bits() / bits;
                Ok(Operation::Pack { d: self.destination(0, of)?, parts, count, bits })
            }
            (Operand::Vector(parts), _) => {
                let (parts, bits) = self.parts(of, parts, true)?;
                let count = of.bits() / bits;
                Ok(Operation::Unpack { parts, a: self.source(1, of)?, count, bits })
            }
            _ => {
                let (d, a) = (self.destination(0, of)?, self.copied(source, of)?);
                Ok(Operation::Unary { f: copy, d, a })
            }
        }
    }

    /// The cell of what a move copies: a value, a special register or the address of a variable.
    fn copied(&mut self, operand: &Operand<'_>, of: Type) -> Decoded<Slot> {
        let (name, offset) = match *operand {
            Operand::Name(name) => (name, 0),
            Operand::Sum(name, offset) => (name, offset),
            _ => return Ok(self.value(operand, of, false)?.0),
        };
        if let Some(&variable) = self.scope.variables.get(name) {
            let (start, least) = match variable {
                Variable::Param { .. } => return Err(format!("{name} has no address")),
                Variable::Shared(start) | Variable::Const(start) => (start, 32),
                Variable::Global(start) => (start, 64),
            };
            if of.bits() < least {
                return Err(format!("the address of {name} has {least} bits or more"));
            }
            return Ok(self.scope.constant(start.wrapping_add_signed(offset)));
        }
        if offset != 0 {
            return Err(format!("{name} is no variable"));
        }
        match self.special(name)? {
            Some(slot) if of.bits() == 32 => Ok(slot),
            Some(_) => Err(format!("{name} has 32 bits")),
            None => Ok(self.value(operand, of, false)?.0),
        }
    }

    /// The cell of a special register, or nothing if the name is that of another.
    fn special(&mut self, name: &str) -> Decoded<Option<Slot>> {
        if self.scope.register(name).is_some() {
            return Ok(None);
        }
        let found = self.scope.special(name);
        if found.is_none() && name.starts_with('%') {
            return Err(format!("{name} is no register"));
        }
        Ok(found)
    }

    /// The cells of the parts of a value, and their width.
    fn parts(
        &mut self,
        of: Type,
        parts: &[Operand<'_>],
        destination: bool,
    ) -> Decoded<([Slot; 4], u32)> {
        let part = match (of, parts.len()) {
            (Type::B64, 2) => Type::B32,
            (Type::B64, 4) | (Type::B32, 2) => Type::B16,
            (_, count) => return Err(format!(".{} has no {count} parts", of.name())),
        };
        let mut slots = [0; 4];
        for (slot, operand) in slots.iter_mut().zip(parts) {
            if destination && !matches!(operand, Operand::Name(_)) {
                return Err("a destination must be a register".to_owned());
            }
            *slot = self.value(operand, part, false)?.0;
        }
        Ok((slots, part.bits()))
    }

    fn convert(&mut self) -> Decoded<Operation> {
        let (to, from) = (self.type_of(CONVERTED)?, self.type_of(CONVERTED)?);
        self.count(2)?;
        let Operand::Name(name) = self.operand(0)? else {
            return Err("operand 1 must be a register".to_owned());
        };
        let (d, width) = self.register(name, to.bits(), true)?;
        let operand = self.operand(1)?;
        let special = match operand {
            Operand::Name(name) if from.bits() == 32 => self.special(name)?,
            _ => None,
        };
        let a = match special {
            Some(slot) => slot,
            None => self.value(operand, from, true)?.0,
        };
        let steps = [
            Extension { from: from.bits(), to: to.bits(), signed: from.is_signed() },
            Extension { from: to.bits(), to: width, signed: to.is_signed() },
        ];
        Ok(Operation::Convert { d, a, steps })
    }

    /// An address in global memory is also one of the generic space.
    fn global_address(&mut self) -> Decoded<Operation> {
        self.expect("to")?;
        self.expect("global")?;
        let of = self.type_of(&[Type::U64])?;
        self.count(2)?;
        Ok(Operation::Unary { f: copy, d: self.destination(0, of)?, a: self.source(1, of)? })
    }

    fn space(&mut self) -> Decoded<Space> {
        match self.modifier()? {
            "param" => Ok(Space::Param),
            "const" => Ok(Space::Const),
            "global" => Ok(Space::Global),
            "shared" => Ok(Space::Shared),
            other => Err(format!("unknown state space .{other}")),
        }
    }

    /// Takes what caches may do, which changes no result.
    fn hints(&mut self, load: bool) -> Decoded<()> {
        let operators: &[&str] =
            if load { &["ca", "cg", "cs", "lu"] } else { &["wb", "cg", "cs", "wt"] };
        let operator = self.accept(operators);
        if load && operator != Some("lu") {
            self.accept(&["nc"]);
        }
        let (version, target) = (self.globals.version, self.globals.target);
        let level1 = ["L1::no_allocate", "L1::evict_last", "L1::evict_first", "L1::evict_normal"];
        if self.accept(&level1).is_some() && (version < 74 || target < 70) {
            return Err("hints for L1 are of version 7.4 and sm_70".to_owned());
        }
        let level2: &[&str] = if load { &["L2::64B", "L2::128B", "L2::256B"] } else { &[] };
        if let Some(size) = self.accept(level2) {
            let least = if size == "L2::256B" { 80 } else { 75 };
            if version < 74 || target < least {
                return Err(format!("{size} is of version 7.4 and sm_{least}"));
            }
        }
        Ok(())
    }

    /// Takes the number of elements of a vector, and their type.
    fn vector(&mut self) -> Decoded<(u32, Type)> {
        let count = match self.accept(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        };
        let of = self.type_of(STORED)?;
        if count * of.bytes() > 16 {
            return Err("a vector has 16 bytes at most".to_owned());
        }
        Ok((count, of))
    }

    /// The operands of a vector, or the one of no vector.
    fn elements<'o>(&self, operand: &'o Operand<'o>, count: u32) -> Decoded<&'o [Operand<'o>]> {
        match operand {
            Operand::Vector(parts) if count > 1 && parts.len() == count as usize => Ok(parts),
            Operand::Vector(_) => Err(format!("a vector must have {count} elements")),
            one if count == 1 => Ok(std::slice::from_ref(one)),
            _ => Err("an operand must be a vector".to_owned()),
        }
    }

    fn load(&mut self) -> Decoded<Operation> {
        let space = self.space()?;
        if space == Space::Global {
            self.hints(true)?;
        }
        let (count, of) = self.vector()?;
        self.count(2)?;
        let (mut d, mut width) = ([0; 4], 0);
        for (slot, operand) in d.iter_mut().zip(self.elements(self.operand(0)?, count)?) {
            let Operand::Name(name) = operand else {
                return Err("a destination must be a register".to_owned());
            };
            let (found, bits) = self.register(name, of.bits(), true)?;
            if width != 0 && width != bits {
                return Err("the registers of a vector must be equally wide".to_owned());
            }
            (*slot, width) = (found, bits);
        }
        let place = self.place(1, space, of, count)?;
        let extension = Extension { from: of.bits(), to: width, signed: of.is_signed() };
        Ok(Operation::Load { d, place, extension })
    }

    fn store(&mut self) -> Decoded<Operation> {
        let space = self.space()?;
        match space {
            Space::Global => self.hints(false)?,
            Space::Shared => {}
            _ => return Err("the state space is read-only".to_owned()),
        }
        let (count, of) = self.vector()?;
        self.count(2)?;
        let place = self.place(0, space, of, count)?;
        let mut a = [0; 4];
        for (slot, operand) in a.iter_mut().zip(self.elements(self.operand(1)?, count)?) {
            *slot = self.value(operand, of, true)?.0;
        }
        Ok(Operation::Store { a, place })
    }

    fn atomic(&mut self, returns: bool) -> Decoded<Operation> {
        let space = self.space()?;
        if !matches!(space, Space::Global | Space::Shared) {
            return Err("the state space has no atomic operations".to_owned());
        }
        self.expect("add")?;
        let of = self.type_of(&[Type::U32])?;
        let at = usize::from(returns);
        self.count(at + 2)?;
        let d = if returns { Some(self.destination(0, of)?) } else { None };
        let place: Place = self.place(at, space, of, 1)?;
        Ok(Operation::AtomicAdd { d, place, b: self.source(at + 1, of)? })
    }

    /// A hint about an address, which may be outside of all allocations.
    fn prefetch(&mut self) -> Decoded<Operation> {
        self.expect("global")?;
        if self.accept(&["L1", "L2"]).is_none() {
            return Err("a cache level is missing".to_owned());
        }
        self.count(1)?;
        self.place(0, Space::Global, Type::B8, 1)?;
        Ok(Operation::Nothing)
    }
}
