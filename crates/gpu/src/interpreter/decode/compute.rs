//! Arithmetic, logic, shifts and comparisons.

use super::{Decoded, Decoder};
use crate::interpreter::arithmetic::*;
use crate::interpreter::operation::Operation;
use crate::interpreter::types::{BITS, INTEGERS, LOGIC, NARROW, SIGNED, Type, WORDS};

type Unary = fn(u64) -> u64;
type Binary = fn(u64, u64) -> u64;
type Ternary = fn(u64, u64, u64) -> u64;
type Quotient = fn(u64, u64) -> Option<u64>;

/// Decodes an instruction that this module knows.
pub(super) fn decode(name: &str, decoder: &mut Decoder<'_>) -> Option<Decoded<Operation>> {
    let d = decoder;
    Some(match name {
        "add" if d.modifiers.first() == Some(&"cc") => d.add_carry(false),
        "addc" => d.add_carry(true),
        "add" => d.binary(INTEGERS, |of| of_type!(of, add)),
        "sub" => d.binary(INTEGERS, |of| of_type!(of, subtract)),
        "mul" => d.multiply(),
        "mad" => d.multiply_add(),
        "div" => d.divide(|of| of_type!(of, divide)),
        "rem" => d.divide(|of| of_type!(of, remainder)),
        "min" => d.binary(INTEGERS, |of| of_type!(of, minimum)),
        "max" => d.binary(INTEGERS, |of| of_type!(of, maximum)),
        "neg" => d.unary(SIGNED, |of| of_type!(of, negate)),
        "abs" => d.unary(SIGNED, |of| of_type!(of, absolute)),
        "and" => d.binary(LOGIC, |_| and),
        "or" => d.binary(LOGIC, |_| or),
        "xor" => d.binary(LOGIC, |_| xor),
        "not" => d.unary(LOGIC, |of| match of {
            Type::Pred => not_predicate,
            _ => of_type!(of, not),
        }),
        "shl" => d.shift(BITS, |of| of_type!(of, shift_left)),
        "shr" => d.shift(WORDS, |of| of_type!(of, shift_right)),
        "setp" => d.compare(),
        "selp" => d.select(),
        _ => return None,
    })
}

impl Decoder<'_> {
    fn unary(&mut self, allowed: &[Type], f: impl Fn(Type) -> Unary) -> Decoded<Operation> {
        let of = self.type_of(allowed)?;
        self.count(2)?;
        Ok(Operation::Unary { f: f(of), d: self.destination(0, of)?, a: self.source(1, of)? })
    }

    fn binary(&mut self, allowed: &[Type], f: impl Fn(Type) -> Binary) -> Decoded<Operation> {
        let of = self.type_of(allowed)?;
        self.binary_of(f(of), of, [of, of])
    }

    /// An operation of two operands of certain types.
    fn binary_of(&mut self, f: Binary, of: Type, from: [Type; 2]) -> Decoded<Operation> {
        self.count(3)?;
        let d = self.destination(0, of)?;
        Ok(Operation::Binary { f, d, a: self.source(1, from[0])?, b: self.source(2, from[1])? })
    }

    fn shift(&mut self, allowed: &[Type], f: impl Fn(Type) -> Binary) -> Decoded<Operation> {
        let of = self.type_of(allowed)?;
        self.binary_of(f(of), of, [of, Type::U32])
    }

    fn divide(&mut self, f: impl Fn(Type) -> Quotient) -> Decoded<Operation> {
        let of = self.type_of(INTEGERS)?;
        self.count(3)?;
        let (d, a, b) = (self.destination(0, of)?, self.source(1, of)?, self.source(2, of)?);
        Ok(Operation::Divide { f: f(of), d, a, b })
    }

    fn multiply(&mut self) -> Decoded<Operation> {
        match self.modifier()? {
            "lo" => self.binary(INTEGERS, |of| of_type!(of, multiply_low)),
            "hi" => self.binary(INTEGERS, |of| of_type!(of, multiply_high)),
            "wide" => {
                let of = self.type_of(NARROW)?;
                self.binary_of(of_type!(of, multiply_wide), of.widened(), [of, of])
            }
            other => Err(format!("unknown modifier .{other}")),
        }
    }

    fn multiply_add(&mut self) -> Decoded<Operation> {
        let half = self.modifier()?;
        let of = self.type_of(if half == "wide" { NARROW } else { INTEGERS })?;
        let (f, wide): (Ternary, Type) = match half {
            "lo" => (of_type!(of, multiply_low_add), of),
            "hi" => (of_type!(of, multiply_high_add), of),
            "wide" => (of_type!(of, multiply_wide_add), of.widened()),
            other => return Err(format!("unknown modifier .{other}")),
        };
        self.count(4)?;
        let d = self.destination(0, wide)?;
        let (a, b, c) = (self.source(1, of)?, self.source(2, of)?, self.source(3, wide)?);
        Ok(Operation::Ternary { f, d, a, b, c })
    }

    /// A sum that takes the carry of the one before, or leaves one, or both.
    fn add_carry(&mut self, takes: bool) -> Decoded<Operation> {
        let leaves = self.accept(&["cc"]).is_some();
        let of = self.type_of(&[Type::U32, Type::S32])?;
        self.count(3)?;
        let (d, a, b) = (self.destination(0, of)?, self.source(1, of)?, self.source(2, of)?);
        let carry_in = takes.then(|| self.scope.carry());
        let carry_out = leaves.then(|| self.scope.carry());
        Ok(Operation::AddCarry { d, a, b, carry_in, carry_out })
    }

    fn compare(&mut self) -> Decoded<Operation> {
        let relation = self.modifier()?;
        let of = self.type_of(WORDS)?;
        let f: Binary = match (relation, of.name().as_bytes()[0]) {
            ("eq", _) => equal,
            ("ne", _) => not_equal,
            ("lt", b'u' | b's') | ("lo", b'u') => of_type!(of, less),
            ("le", b'u' | b's') | ("ls", b'u') => of_type!(of, less_or_equal),
            ("gt", b'u' | b's') | ("hi", b'u') => of_type!(of, greater),
            ("ge", b'u' | b's') | ("hs", b'u') => of_type!(of, greater_or_equal),
            _ => return Err(format!("no comparison .{relation} of .{}", of.name())),
        };
        self.binary_of(f, Type::Pred, [of, of])
    }

    fn select(&mut self) -> Decoded<Operation> {
        let of = self.type_of(WORDS)?;
        self.count(4)?;
        let (d, a, b) = (self.destination(0, of)?, self.source(1, of)?, self.source(2, of)?);
        Ok(Operation::Ternary { f: select, d, a, b, c: self.source(3, Type::Pred)? })
    }
}
