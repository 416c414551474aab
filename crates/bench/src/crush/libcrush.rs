//! Ceph's C mapper, through its C interface, from a shared library that the user has built.
//!
//! The library's own builder makes the map. The layout of a map in memory differs between versions,
//! so this module does not access it. Tunables stay at the library's optimal values, which our maps
//! also have. The map would give the size of the work space. Instead, this module allocates more
//! than any version needs.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

use anyhow::bail;
use fieldstone_crush::{Map, binary};

use crate::library::{Library, Symbol};

type Create = unsafe extern "C" fn() -> *mut c_void;
type MakeBucket =
    unsafe extern "C" fn(*mut c_void, i32, i32, i32, i32, *mut i32, *mut i32) -> *mut c_void;
type AddBucket = unsafe extern "C" fn(*mut c_void, i32, *mut c_void, *mut i32) -> i32;
type MakeRule = unsafe extern "C" fn(i32, i32, i32, i32, i32) -> *mut c_void;
type SetStep = unsafe extern "C" fn(*mut c_void, i32, i32, i32, i32);
type AddRule = unsafe extern "C" fn(*mut c_void, *mut c_void, i32) -> i32;
type Finalize = unsafe extern "C" fn(*mut c_void);
type Destroy = unsafe extern "C" fn(*mut c_void);
type InitWorkspace = unsafe extern "C" fn(*const c_void, *mut c_void);
type DoRule = unsafe extern "C" fn(
    *const c_void,
    i32,
    i32,
    *mut i32,
    i32,
    *const u32,
    i32,
    *mut c_void,
    *const c_void,
) -> i32;

/// The library's functions.
#[derive(Clone)]
pub struct Libcrush {
    /// The path from which it was loaded.
    pub path: PathBuf,
    create: Create,
    make_bucket: MakeBucket,
    add_bucket: AddBucket,
    make_rule: MakeRule,
    set_step: SetStep,
    add_rule: AddRule,
    finalize: Finalize,
    destroy: Destroy,
    init_workspace: InitWorkspace,
    do_rule: DoRule,
}

impl Libcrush {
    /// Loads the library.
    ///
    /// # Errors
    /// The library does not exist, or lacks a function.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let library = Library::load(path)?;
        let symbol = |name| library.symbol(name);
        // SAFETY: these are the types that the headers of Ceph's crush folder give these functions.
        // From Ceph 19 on, `crush_make_rule` only takes a length and a type. The first two
        // arguments here fit both versions, and further arguments do no harm.
        unsafe {
            Ok(Self {
                path: path.to_owned(),
                create: std::mem::transmute::<Symbol, Create>(symbol(c"crush_create")?),
                make_bucket: std::mem::transmute::<Symbol, MakeBucket>(symbol(
                    c"crush_make_bucket",
                )?),
                add_bucket: std::mem::transmute::<Symbol, AddBucket>(symbol(c"crush_add_bucket")?),
                make_rule: std::mem::transmute::<Symbol, MakeRule>(symbol(c"crush_make_rule")?),
                set_step: std::mem::transmute::<Symbol, SetStep>(symbol(c"crush_rule_set_step")?),
                add_rule: std::mem::transmute::<Symbol, AddRule>(symbol(c"crush_add_rule")?),
                finalize: std::mem::transmute::<Symbol, Finalize>(symbol(c"crush_finalize")?),
                destroy: std::mem::transmute::<Symbol, Destroy>(symbol(c"crush_destroy")?),
                init_workspace: std::mem::transmute::<Symbol, InitWorkspace>(symbol(
                    c"crush_init_workspace",
                )?),
                do_rule: std::mem::transmute::<Symbol, DoRule>(symbol(c"crush_do_rule")?),
            })
        }
    }

    /// Makes the same map in the library.
    ///
    /// # Errors
    /// The library refuses the map, a bucket or a rule.
    pub fn map(&self, map: &Map, width: usize) -> anyhow::Result<CMap> {
        // SAFETY: the calls follow the header: buckets before rules, and `finalize` at the end. The
        // map owns the buckets and rules that are added to it.
        let handle = unsafe { (self.create)() };
        if handle.is_null() {
            bail!("{} cannot make a map", self.path.display());
        }
        let mut made = CMap { library: self.clone(), handle, space: Vec::new() };
        let mut items_in_all = 0;
        for bucket in map.buckets() {
            let mut items: Vec<i32> = bucket.items.iter().map(|item| item.0).collect();
            let mut weights: Vec<i32> =
                (0..items.len()).map(|index| bucket.item_weight(index) as i32).collect();
            items_in_all += items.len();
            let (algorithm, kind) = (bucket.algorithm.kind() as i32, i32::from(bucket.kind.0));
            let mut id = 0;
            // SAFETY: as above; both lists have the given length.
            let added = unsafe {
                let (items, weights) = (items.as_mut_ptr(), weights.as_mut_ptr());
                let size = bucket.items.len() as i32;
                let c_bucket = (self.make_bucket)(handle, algorithm, 0, kind, size, items, weights);
                !c_bucket.is_null()
                    && (self.add_bucket)(handle, bucket.id.0, c_bucket, &raw mut id) == 0
            };
            if !added {
                bail!("{} refuses bucket {}", self.path.display(), bucket.id.0);
            }
        }
        for (id, rule) in map.rules() {
            let steps: Vec<(u32, i32, i32)> =
                rule.steps.iter().map(|&step| binary::step_numbers(step)).collect();
            // SAFETY: as above; every step is within the length of the rule.
            let added = unsafe {
                let c_rule = (self.make_rule)(steps.len() as i32, 1, 1, 1, 10);
                for (&(opcode, first, second), at) in steps.iter().zip(0..) {
                    (self.set_step)(c_rule, at, opcode as i32, first, second);
                }
                (self.add_rule)(handle, c_rule, id.0 as i32)
            };
            if added != id.0 as i32 {
                bail!("{} refuses rule {}", self.path.display(), id.0);
            }
        }
        // Versions need pointers and a small structure per bucket (their table grows by doubling),
        // a word per item, and three lists of results.
        let words = 64 * map.bucket_slots() + items_in_all + 3 * width + (1 << 16);
        made.space = vec![0u64; words];
        // SAFETY: the space is larger than the library needs.
        unsafe {
            (self.finalize)(handle);
            (self.init_workspace)(handle, made.space.as_mut_ptr().cast());
        }
        Ok(made)
    }
}

/// A map in the library's memory.
pub struct CMap {
    library: Libcrush,
    handle: *mut c_void,
    /// Work space, kept between calls, as the library's users keep it.
    space: Vec<u64>,
}

impl CMap {
    /// Maps one input. Returns the number of positions in `result`.
    pub fn map(&mut self, rule: u32, x: u32, weights: &[u32], result: &mut [i32]) -> usize {
        // SAFETY: the map is final, the space was made for it, and the lists have the given
        // lengths.
        let len = unsafe {
            (self.library.do_rule)(
                self.handle,
                rule as i32,
                x as i32,
                result.as_mut_ptr(),
                result.len() as i32,
                weights.as_ptr(),
                weights.len() as i32,
                self.space.as_mut_ptr().cast(),
                ptr::null(),
            )
        };
        usize::try_from(len).unwrap_or(0)
    }
}

impl Drop for CMap {
    fn drop(&mut self) {
        // SAFETY: the library made the map, and the map is no longer used.
        unsafe { (self.library.destroy)(self.handle) }
    }
}
