//! Branches, ends, barriers, and what lanes of a warp do together.

use super::{Decoded, Decoder};
use crate::interpreter::operation::{Collective, Operation, Shuffle, Slot, Vote};
use crate::interpreter::reader::Operand;
use crate::interpreter::types::Type;

/// Decodes an instruction that this module knows.
pub(super) fn decode(name: &str, decoder: &mut Decoder<'_>) -> Option<Decoded<Operation>> {
    let d = decoder;
    Some(match name {
        "bra" => d.branch(),
        "brx" => d.branch_indexed(),
        "ret" | "exit" => d.count(0).map(|()| Operation::End),
        "bar" => d.barrier(),
        "shfl" => d.shuffle(),
        "vote" => d.vote(),
        "activemask" => d.active_mask(),
        _ => return None,
    })
}

impl Decoder<'_> {
    fn label(&self, index: usize) -> Decoded<&str> {
        match self.operand(index)? {
            Operand::Name(name) => Ok(name),
            _ => Err(format!("operand {} must be a label", index + 1)),
        }
    }

    fn branch(&mut self) -> Decoded<Operation> {
        self.accept(&["uni"]);
        self.count(1)?;
        let name = self.label(0)?.to_owned();
        Ok(Operation::Branch { target: self.scope.label(&name) })
    }

    fn branch_indexed(&mut self) -> Decoded<Operation> {
        self.expect("idx")?;
        self.accept(&["uni"]);
        self.count(2)?;
        let index = self.source(0, Type::U32)?;
        let name = self.label(1)?;
        let Some(targets) = self.scope.lists.get(name) else {
            return Err(format!("{name} is no list of branch targets that stands before"));
        };
        Ok(Operation::BranchIndexed { index, targets: targets.clone().into() })
    }

    fn barrier(&mut self) -> Decoded<Operation> {
        if self.accept(&["warp"]).is_some() {
            self.expect("sync")?;
            self.count(1)?;
            let mask = self.source(0, Type::B32)?;
            return Ok(Operation::Collective(Collective::Sync { mask }));
        }
        self.expect("sync")?;
        self.count(1)?;
        match self.operand(0)? {
            Operand::Number(0..=15) => Ok(Operation::Barrier),
            _ => Err("the barrier must be a number below 16".to_owned()),
        }
    }

    fn shuffle(&mut self) -> Decoded<Operation> {
        self.expect("sync")?;
        let how = match self.modifier()? {
            "idx" => Shuffle::Index,
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            other => return Err(format!("unknown modifier .{other}")),
        };
        let of = self.type_of(&[Type::B32])?;
        self.count(5)?;
        let (d, in_range): (Slot, _) = match *self.operand(0)? {
            Operand::Pair(d, p) => {
                (self.register(d, 32, false)?.0, Some(self.register(p, 1, false)?.0))
            }
            _ => (self.destination(0, of)?, None),
        };
        let abc = [self.source(1, of)?, self.source(2, of)?, self.source(3, of)?];
        let shuffle = Collective::Shuffle { how, d, in_range, abc, mask: self.source(4, of)? };
        Ok(Operation::Collective(shuffle))
    }

    fn vote(&mut self) -> Decoded<Operation> {
        self.expect("sync")?;
        let (how, of) = match self.modifier()? {
            "any" => (Vote::Any, Type::Pred),
            "all" => (Vote::All, Type::Pred),
            "ballot" => (Vote::Ballot, Type::B32),
            other => return Err(format!("unknown modifier .{other}")),
        };
        self.type_of(&[of])?;
        self.count(3)?;
        let d = self.destination(0, of)?;
        let (a, negate) = self.predicate(1)?;
        let mask = self.source(2, Type::B32)?;
        Ok(Operation::Collective(Collective::Vote { how, d, a, negate, mask }))
    }

    fn active_mask(&mut self) -> Decoded<Operation> {
        let of = self.type_of(&[Type::B32])?;
        self.count(1)?;
        let d = self.destination(0, of)?;
        Ok(Operation::Collective(Collective::ActiveMask { d }))
    }
}
