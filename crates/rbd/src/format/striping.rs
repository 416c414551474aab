//! The places of an image's bytes in objects.
//!
//! An image is a row of *stripe units*. Without striping, a unit is a whole object, and unit `n` is
//! object `n`. With striping, units go in turn to `stripe_count` objects, an *object set*, until
//! the set is full; then the next set begins:
//!
//! ```text
//! stripe_count = 3, two units in an object:
//!   set 0:  object 0: units 0 3   object 1: units 1 4   object 2: units 2 5
//!   set 1:  object 3: units 6 9   object 4: units 7 10  object 5: units 8 11
//! ```

use smallvec::SmallVec;

/// How an image is cut into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    order: u8,
    stripe_unit: u64,
    stripe_count: u64,
}

/// The smallest and the largest size of objects, as powers of two (Ceph: 4 KiB to 32 MiB).
pub const ORDERS: std::ops::RangeInclusive<u8> = 12..=25;
/// The largest number of objects in a set. Ceph has no bound; sets of this size are never useful.
pub const STRIPE_COUNT_MAX: u64 = 1 << 16;

/// Why a layout is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Objects are too small or too large.
    #[error("objects of 2^{0} bytes: the size must be a power of two from 4 KiB to 32 MiB")]
    Order(u8),
    /// The stripe unit does not divide the object.
    #[error("a stripe unit of {unit} bytes does not divide objects of {object_bytes} bytes")]
    Unit {
        /// The stripe unit.
        unit: u64,
        /// The size of an object.
        object_bytes: u64,
    },
    /// The number of objects in a set is zero or too large.
    #[error("a stripe count of {0}: it must be from 1 to 65536")]
    Count(u64),
}

/// A part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectExtent {
    /// The number of the object.
    pub object: u64,
    /// The first byte in the object.
    pub offset_bytes: u64,
    /// The length.
    pub len_bytes: u64,
    /// Where the part begins in the range of the image that was asked for.
    pub buffer_offset_bytes: u64,
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageExtent {
    /// The first byte.
    pub offset_bytes: u64,
    /// The length.
    pub len_bytes: u64,
}

impl Layout {
    /// Objects of `2^order` bytes. A stripe unit and count of zero stand for no striping.
    ///
    /// # Errors
    /// The values fit no image.
    pub fn new(order: u8, stripe_unit: u64, stripe_count: u64) -> Result<Self, LayoutError> {
        if !ORDERS.contains(&order) {
            return Err(LayoutError::Order(order));
        }
        let object_bytes = 1 << order;
        let (unit, count) = match (stripe_unit, stripe_count) {
            (0, 0) => (object_bytes, 1),
            other => other,
        };
        if unit == 0 || unit > object_bytes || !object_bytes.is_multiple_of(unit) {
            return Err(LayoutError::Unit { unit, object_bytes });
        }
        if count == 0 || count > STRIPE_COUNT_MAX {
            return Err(LayoutError::Count(count));
        }
        Ok(Self { order, stripe_unit: unit, stripe_count: count })
    }

    /// The size of an object, as a power of two.
    #[must_use]
    pub fn order(&self) -> u8 {
        self.order
    }

    /// The size of an object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        1 << self.order
    }

    /// The size of a stripe unit.
    #[must_use]
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// The number of objects in a set.
    #[must_use]
    pub fn stripe_count(&self) -> u64 {
        self.stripe_count
    }

    /// True if units are dealt out to several objects, or an image's order of bytes differs from
    /// that of objects.
    #[must_use]
    pub fn is_striped(&self) -> bool {
        self.stripe_count > 1
    }

    /// The number of objects of an image of this size.
    #[must_use]
    pub fn objects(&self, size_bytes: u64) -> u64 {
        let set_bytes = self.object_bytes().saturating_mul(self.stripe_count);
        let whole_sets = size_bytes / set_bytes;
        let rest = size_bytes % set_bytes;
        let last =
            if rest == 0 { 0 } else { rest.div_ceil(self.stripe_unit).min(self.stripe_count) };
        whole_sets.saturating_mul(self.stripe_count).saturating_add(last)
    }

    /// The place of a byte: the object, and the offset in it.
    #[must_use]
    pub fn place(&self, offset_bytes: u64) -> (u64, u64) {
        let unit = offset_bytes / self.stripe_unit;
        let in_unit = offset_bytes % self.stripe_unit;
        let units_in_object = self.object_bytes() / self.stripe_unit;
        let row = unit / self.stripe_count;
        let column = unit % self.stripe_count;
        let set = row / units_in_object;
        let object = set * self.stripe_count + column;
        (object, (row % units_in_object) * self.stripe_unit + in_unit)
    }

    /// The parts of objects that hold a range of the image, in the image's order. Parts of the same
    /// object that follow each other are one.
    ///
    /// The range must end within 2^63 bytes.
    #[must_use]
    pub fn map(&self, offset_bytes: u64, len_bytes: u64) -> SmallVec<[ObjectExtent; 2]> {
        let mut extents: SmallVec<[ObjectExtent; 2]> = SmallVec::new();
        let mut done = 0;
        while done < len_bytes {
            let at = offset_bytes + done;
            let (object, offset) = self.place(at);
            let len = (self.stripe_unit - at % self.stripe_unit).min(len_bytes - done);
            match extents.last_mut() {
                Some(last)
                    if last.object == object && last.offset_bytes + last.len_bytes == offset =>
                {
                    last.len_bytes += len;
                }
                _ => extents.push(ObjectExtent {
                    object,
                    offset_bytes: offset,
                    len_bytes: len,
                    buffer_offset_bytes: done,
                }),
            }
            done += len;
        }
        extents
    }

    /// The parts of the image that a part of an object holds, in the object's order.
    #[must_use]
    pub fn unmap(
        &self,
        object: u64,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> SmallVec<[ImageExtent; 2]> {
        let mut extents: SmallVec<[ImageExtent; 2]> = SmallVec::new();
        let units_in_object = self.object_bytes() / self.stripe_unit;
        let (set, column) = (object / self.stripe_count, object % self.stripe_count);
        let mut done = 0;
        while done < len_bytes {
            let at = offset_bytes + done;
            let row = set * units_in_object + at / self.stripe_unit;
            let in_unit = at % self.stripe_unit;
            let offset = (row * self.stripe_count + column) * self.stripe_unit + in_unit;
            let len = (self.stripe_unit - in_unit).min(len_bytes - done);
            match extents.last_mut() {
                Some(last) if last.offset_bytes + last.len_bytes == offset => last.len_bytes += len,
                _ => extents.push(ImageExtent { offset_bytes: offset, len_bytes: len }),
            }
            done += len;
        }
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Deals units out one by one, as the picture above does.
    fn naive(layout: &Layout, byte: u64) -> (u64, u64) {
        let per_object = layout.object_bytes() / layout.stripe_unit();
        let mut filled = vec![0u64; layout.stripe_count() as usize];
        let (mut set, mut column, mut unit) = (0, 0, 0);
        loop {
            if filled.iter().all(|&units| units == per_object) {
                filled.fill(0);
                set += 1;
            }
            if unit == byte / layout.stripe_unit() {
                let object = set * layout.stripe_count() + column as u64;
                let offset = filled[column] * layout.stripe_unit() + byte % layout.stripe_unit();
                return (object, offset);
            }
            filled[column] += 1;
            column = (column + 1) % filled.len();
            unit += 1;
        }
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (12u8..15, 0u8..4, 1u64..6).prop_map(|(order, shift, count)| {
            Layout::new(order, 1 << (order - shift), count).expect("a layout")
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_byte_is_where_the_naive_model_puts_it(
            layout in layouts(), offset in 0u64..200_000, len in 1u64..40_000,
        ) {
            let extents = layout.map(offset, len);
            let mut expected = 0;
            for extent in &extents {
                prop_assert_eq!(extent.buffer_offset_bytes, expected);
                prop_assert!(extent.offset_bytes + extent.len_bytes <= layout.object_bytes());
                for step in [0, extent.len_bytes / 2, extent.len_bytes - 1] {
                    let byte = offset + extent.buffer_offset_bytes + step;
                    let place = (extent.object, extent.offset_bytes + step);
                    prop_assert_eq!(place, naive(&layout, byte));
                }
                let back = layout.unmap(extent.object, extent.offset_bytes, extent.len_bytes);
                prop_assert_eq!(back[0].offset_bytes, offset + extent.buffer_offset_bytes);
                let total: u64 = back.iter().map(|part| part.len_bytes).sum();
                prop_assert_eq!(total, extent.len_bytes);
                expected += extent.len_bytes;
            }
            prop_assert_eq!(expected, len);
        }

        #[test]
        fn an_image_has_the_objects_that_its_bytes_need(
            layout in layouts(), size in 1u64..200_000,
        ) {
            let highest = layout.map(0, size).iter().map(|extent| extent.object).max();
            prop_assert_eq!(Some(layout.objects(size)), highest.map(|object| object + 1));
        }

        #[test]
        fn parts_of_objects_are_parts_of_the_image(
            layout in layouts(), object in 0u64..12, offset in 0u64..4096, len in 1u64..4096,
        ) {
            let len = len.min(layout.object_bytes() - offset).max(1);
            let mut at = offset;
            for part in layout.unmap(object, offset, len) {
                for step in [0, part.len_bytes - 1] {
                    let place = layout.place(part.offset_bytes + step);
                    prop_assert_eq!(place, (object, at + step));
                }
                at += part.len_bytes;
            }
            prop_assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn layouts_that_fit_no_image_are_refused() {
        assert!(Layout::new(22, 0, 0).is_ok());
        assert_eq!(Layout::new(40, 0, 0), Err(LayoutError::Order(40)));
        assert!(matches!(Layout::new(22, 3000, 2), Err(LayoutError::Unit { .. })));
        assert_eq!(Layout::new(22, 4096, 0), Err(LayoutError::Count(0)));
        assert_eq!(Layout::new(22, 0, 0).expect("a layout").objects(0), 0);
    }
}
