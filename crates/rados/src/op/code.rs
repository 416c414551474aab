//! The numbers of operations (Ceph: `CEPH_OSD_OP_*`).
//!
//! A number tells two things by itself: 0x1000 for an operation that reads, 0x2000 for one that
//! writes; and in the bits 0xf00 what it works on. A call of a class says "reads" whatever the
//! method does.

/// The bit of operations that read.
pub const MODE_READ: u16 = 0x1000;
/// The bit of operations that write.
pub const MODE_WRITE: u16 = 0x2000;
/// The bits that say what an operation works on.
pub const TYPE_MASK: u16 = 0x0f00;
/// Works on a placement group, not on an object.
pub const TYPE_GROUP: u16 = 0x0500;

macro_rules! codes {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        $(#[doc = $doc] pub const $name: u16 = $number;)*
    };
}

codes! {
    READ = 0x1201, "Reads an extent.";
    STAT = 0x1202, "Size and time of change.";
    SPARSE_READ = 0x1205, "Reads an extent without its holes.";
    NOTIFY = 0x1206, "Notifies the watchers.";
    NOTIFY_ACK = 0x1207, "Acknowledges a notification.";
    ASSERT_VERSION = 0x1208, "Fails unless the object has a version.";
    LIST_WATCHERS = 0x1209, "Lists the watchers.";
    LIST_SNAPS = 0x120a, "Lists the clones for snapshots.";
    OMAP_GET_KEYS = 0x1211, "Keys of the omap.";
    OMAP_GET_VALUES = 0x1212, "Keys and values of the omap.";
    OMAP_GET_HEADER = 0x1213, "The header of the omap.";
    OMAP_GET_BY_KEYS = 0x1214, "Values of the omap for given keys.";
    COMPARE_EXTENT = 0x1220, "Fails unless an extent has given bytes.";
    GET_XATTR = 0x1301, "One attribute.";
    GET_XATTRS = 0x1302, "All attributes.";
    COMPARE_XATTR = 0x1303, "Fails unless an attribute compares as asked.";
    CALL = 0x1401, "Calls a method of a class at the OSD.";
    LIST_GROUP = 0x1505, "Lists the objects of a placement group (PGNLS).";
    WRITE = 0x2201, "Writes an extent.";
    WRITE_FULL = 0x2202, "Replaces all data.";
    TRUNCATE = 0x2203, "Sets the size.";
    ZERO = 0x2204, "Zeroes an extent.";
    DELETE = 0x2205, "Deletes the object.";
    APPEND = 0x2206, "Writes behind the end.";
    CREATE = 0x220d, "Creates the object.";
    ROLLBACK = 0x220e, "Makes the present state that of a snapshot.";
    WATCH = 0x220f, "Begins, renews or ends a watch.";
    OMAP_SET = 0x2215, "Sets keys of the omap.";
    OMAP_SET_HEADER = 0x2216, "Sets the header of the omap.";
    OMAP_CLEAR = 0x2217, "Removes header and all keys of the omap.";
    OMAP_REMOVE_KEYS = 0x2218, "Removes keys of the omap.";
    SET_ALLOC_HINT = 0x2223, "Says how the object will be used.";
    WRITE_SAME = 0x2226, "Writes the same bytes again and again.";
    SET_XATTR = 0x2301, "Sets an attribute.";
    REMOVE_XATTR = 0x2304, "Removes an attribute.";
}
