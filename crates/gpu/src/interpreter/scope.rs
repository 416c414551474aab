//! The names of a kernel while its text is read, and the cells that they have.

use std::collections::HashMap;

use super::kernel::Special;
use super::operation::{Cell, Slot};
use super::types::Type;

/// The most registers that one declaration may have.
const MAX_FAMILY: u32 = 1 << 20;

/// A name that is no register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variable {
    Param { offset: u32, bytes: u32 },
    Shared(u64),
    Const(u64),
    Global(u64),
}

/// Registers with numbers: `%r<3>` is `%r0`, `%r1` and `%r2`.
struct Family {
    prefix: String,
    count: u32,
    bits: u32,
}

/// What the names of a kernel stand for.
#[derive(Default)]
pub(super) struct Scope {
    pub cells: Vec<Cell>,
    pub names: Vec<String>,
    pub specials: Vec<(Special, Slot)>,
    pub variables: HashMap<String, Variable>,
    registers: HashMap<String, (Slot, u32)>,
    families: Vec<Family>,
    constants: HashMap<u64, Slot>,
    labels: HashMap<String, u32>,
    /// By number of the label: its instruction.
    targets: Vec<(String, Option<u32>)>,
    /// Lists of labels, for indexed branches.
    pub lists: HashMap<String, Vec<u32>>,
    carry: Option<Slot>,
}

impl Scope {
    fn cell(&mut self, name: String, cell: Cell) -> Slot {
        self.cells.push(cell);
        self.names.push(name);
        (self.cells.len() - 1) as Slot
    }

    fn is_known(&mut self, name: &str) -> bool {
        self.variables.contains_key(name) || self.register(name).is_some()
    }

    /// Declares a register.
    ///
    /// # Errors
    ///
    /// The name is taken.
    pub fn declare(&mut self, name: &str, of: Type) -> Result<(), String> {
        if self.is_known(name) {
            return Err(format!("{name} is declared twice"));
        }
        let slot = self.cell(name.to_owned(), Cell::default());
        self.registers.insert(name.to_owned(), (slot, of.bits()));
        Ok(())
    }

    /// Declares registers with numbers below a count.
    ///
    /// # Errors
    ///
    /// The name is taken, or they are too many.
    pub fn declare_family(&mut self, prefix: &str, count: u32, of: Type) -> Result<(), String> {
        if self.families.iter().any(|family| family.prefix == prefix) {
            return Err(format!("{prefix}<> is declared twice"));
        }
        if count > MAX_FAMILY {
            return Err(format!("{prefix}<{count}> is more than {MAX_FAMILY} registers"));
        }
        self.families.push(Family { prefix: prefix.to_owned(), count, bits: of.bits() });
        Ok(())
    }

    /// Declares a variable.
    ///
    /// # Errors
    ///
    /// The name is taken.
    pub fn declare_variable(&mut self, name: &str, variable: Variable) -> Result<(), String> {
        if self.is_known(name) {
            return Err(format!("{name} is declared twice"));
        }
        self.variables.insert(name.to_owned(), variable);
        Ok(())
    }

    /// The cell and the width of a register. A register of a family gets its cell when it is first
    /// named, so those that no instruction names cost nothing.
    pub fn register(&mut self, name: &str) -> Option<(Slot, u32)> {
        if let Some(&found) = self.registers.get(name) {
            return Some(found);
        }
        let family = self.families.iter().find(|family| {
            let digits = name.strip_prefix(&family.prefix);
            let number = digits.and_then(|digits| digits.parse::<u32>().ok());
            number.is_some_and(|n| n < family.count && digits == Some(&n.to_string()))
        })?;
        let bits = family.bits;
        let slot = self.cell(name.to_owned(), Cell::default());
        self.registers.insert(name.to_owned(), (slot, bits));
        Some((slot, bits))
    }

    /// The cell of a value that does not change.
    pub fn constant(&mut self, value: u64) -> Slot {
        if let Some(&slot) = self.constants.get(&value) {
            return slot;
        }
        let slot = self.cell(value.to_string(), Cell::of(value));
        self.constants.insert(value, slot);
        slot
    }

    /// The cell of a special register.
    pub fn special(&mut self, name: &str) -> Option<Slot> {
        let special = Special::named(name)?;
        if let Some(&(_, slot)) = self.specials.iter().find(|(known, _)| *known == special) {
            return Some(slot);
        }
        let slot = self.cell(name.to_owned(), Cell::default());
        self.specials.push((special, slot));
        Some(slot)
    }

    /// The cell of the carry of the last addition that wrote one.
    pub fn carry(&mut self) -> Slot {
        if let Some(slot) = self.carry {
            return slot;
        }
        let slot = self.cell("the carry".to_owned(), Cell::default());
        *self.carry.insert(slot)
    }

    /// The number of a label, which may be defined later.
    pub fn label(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.labels.get(name) {
            return number;
        }
        let number = self.targets.len() as u32;
        self.targets.push((name.to_owned(), None));
        self.labels.insert(name.to_owned(), number);
        number
    }

    /// Defines a label: the index of the instruction after it.
    ///
    /// # Errors
    ///
    /// It is defined already.
    pub fn define_label(&mut self, name: &str, target: u32) -> Result<(), String> {
        let number = self.label(name) as usize;
        if self.targets[number].1.is_some() || self.lists.contains_key(name) {
            return Err(format!("the label {name} is defined twice"));
        }
        self.targets[number].1 = Some(target);
        Ok(())
    }

    /// The instruction of a label by its number.
    ///
    /// # Errors
    ///
    /// It is not defined.
    pub fn target(&self, number: u32) -> Result<u32, String> {
        let (name, target) = &self.targets[number as usize];
        target.ok_or_else(|| format!("the label {name} is not defined"))
    }
}
