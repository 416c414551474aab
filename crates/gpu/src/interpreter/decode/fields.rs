//! Permutes, funnels, fields of bits and logic of three inputs.

use super::{Decoded, Decoder};
use crate::interpreter::arithmetic::of_type;
use crate::interpreter::bits::{
    count_ones, extract, funnel_left_clamp, funnel_left_wrap, funnel_right_clamp,
    funnel_right_wrap, insert, leading_zeros, logic3, permute, reverse, sum3,
};
use crate::interpreter::operation::Operation;
use crate::interpreter::reader::Operand;
use crate::interpreter::types::Type::{self, B32, B64, S32, S64, U32, U64};

/// Decodes an instruction that this module knows.
pub(super) fn decode(name: &str, decoder: &mut Decoder<'_>) -> Option<Decoded<Operation>> {
    let d = decoder;
    Some(match name {
        "shf" => d.funnel(),
        "lop3" => d.logic3(),
        "prmt" => d.type_of(&[B32]).and_then(|_| d.ternary(permute, B32, [B32; 3])),
        "bfe" => d.extract(),
        "bfi" => d.insert(),
        "brev" => d.bits(|of| of_type!(of, reverse), false),
        "popc" => d.bits(|_| count_ones, true),
        "clz" => d.bits(|of| of_type!(of, leading_zeros), true),
        _ => return None,
    })
}

impl Decoder<'_> {
    /// An operation of three operands of certain types.
    fn ternary(
        &mut self,
        f: fn(u64, u64, u64) -> u64,
        of: Type,
        from: [Type; 3],
    ) -> Decoded<Operation> {
        self.count(4)?;
        let d = self.destination(0, of)?;
        let (a, b, c) =
            (self.source(1, from[0])?, self.source(2, from[1])?, self.source(3, from[2])?);
        Ok(Operation::Ternary { f, d, a, b, c })
    }

    fn funnel(&mut self) -> Decoded<Operation> {
        let f = match (self.modifier()?, self.modifier()?) {
            ("l", "wrap") => funnel_left_wrap,
            ("l", "clamp") => funnel_left_clamp,
            ("r", "wrap") => funnel_right_wrap,
            ("r", "clamp") => funnel_right_clamp,
            (direction, mode) => return Err(format!("unknown modifiers .{direction}.{mode}")),
        };
        self.type_of(&[B32])?;
        self.ternary(f, B32, [B32, B32, U32])
    }

    fn logic3(&mut self) -> Decoded<Operation> {
        self.type_of(&[B32])?;
        self.count(5)?;
        let Operand::Number(table @ 0..=255) = *self.operand(4)? else {
            return Err("the table must be an immediate of 8 bits".to_owned());
        };
        let d = self.destination(0, B32)?;
        let abc = [self.source(1, B32)?, self.source(2, B32)?, self.source(3, B32)?];
        if table == 0x96 {
            let [a, b, c] = abc;
            return Ok(Operation::Ternary { f: sum3, d, a, b, c });
        }
        let e = self.scope.constant(table as u64);
        Ok(Operation::Quaternary { f: logic3, d, abc, e })
    }

    fn extract(&mut self) -> Decoded<Operation> {
        let of = self.type_of(&[U32, U64, S32, S64])?;
        self.ternary(of_type!(of, extract), of, [of, U32, U32])
    }

    fn insert(&mut self) -> Decoded<Operation> {
        let of = self.type_of(&[B32, B64])?;
        self.count(5)?;
        let d = self.destination(0, of)?;
        let abc = [self.source(1, of)?, self.source(2, of)?, self.source(3, U32)?];
        Ok(Operation::Quaternary { f: of_type!(of, insert), d, abc, e: self.source(4, U32)? })
    }

    /// An operation of one operand, whose result is as wide or is a count of bits.
    fn bits(&mut self, f: impl Fn(Type) -> fn(u64) -> u64, counts: bool) -> Decoded<Operation> {
        let of = self.type_of(&[B32, B64])?;
        self.count(2)?;
        let d = self.destination(0, if counts { U32 } else { of })?;
        Ok(Operation::Unary { f: f(of), d, a: self.source(1, of)? })
    }
}
