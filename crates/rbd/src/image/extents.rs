//! What a range of the image stores, as far as the object map knows.
//!
//! An object that surely does not exist, and that the parent has nothing of, is a hole. All else
//! counts as data: the map does not know holes inside objects.

use fieldstone_block::{EXTENTS_MAX, Extent, ExtentKind};

use super::core::Core;
use crate::error::RbdError;

impl Core {
    /// The extents of a range, from its start; fewer than the range has if there are many.
    pub(crate) async fn extents(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Vec<Extent>, RbdError> {
        self.check()?;
        self.refresh().await?;
        let view = self.view();
        if self.map.borrow().is_none() {
            return Ok(vec![Extent { len_bytes, kind: ExtentKind::Data }]);
        }
        let mut extents: Vec<Extent> = Vec::new();
        for part in view.layout.map(offset_bytes, len_bytes) {
            let is_hole = !self.may_exist(part.object) && view.object_overlap(part.object) == 0;
            let kind = if is_hole { ExtentKind::Hole } else { ExtentKind::Data };
            let is_full = extents.len() == EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len_bytes += part.len_bytes,
                _ if is_full => break,
                _ => extents.push(Extent { len_bytes: part.len_bytes, kind }),
            }
        }
        Ok(extents)
    }
}
