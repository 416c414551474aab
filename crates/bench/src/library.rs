//! Shared libraries that need not be installed.
//!
//! A benchmark loads its peers when it runs, so the program starts without them. A library stays
//! loaded until the process ends, so the addresses of its functions stay valid.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, bail};

/// The address of a function of a library.
pub type Symbol = NonNull<libc::c_void>;

/// A loaded library.
#[derive(Debug)]
pub struct Library {
    handle: NonNull<libc::c_void>,
}

impl Library {
    /// Loads the library at a path, or by its file name from the system's folders.
    ///
    /// # Errors
    /// The dynamic linker's error, for example that the file does not exist.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .context("the path has a zero byte")?;
        // SAFETY: the name is a C string. Loading runs the initialisers of a library that the user
        // named or the system installed.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle }),
            None => bail!("{}", last_error()),
        }
    }

    /// The address of a function.
    ///
    /// # Errors
    /// The library has no such function.
    pub fn symbol(&self, name: &CStr) -> anyhow::Result<Symbol> {
        // SAFETY: the handle is open and the name is a C string.
        let symbol = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(symbol).with_context(last_error)
    }
}

fn last_error() -> String {
    // SAFETY: the result is null or a C string that stays valid until the next call on this thread.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
    };
    text.map_or_else(|| "unknown error".to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_and_what_is_missing_is_told() {
        let library = Library::load(Path::new("libc.so.6")).expect("every program has it");
        let symbol = library.symbol(c"abs").expect("every libc has it");
        // SAFETY: this is the type of abs(3).
        let abs: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(symbol) };
        assert_eq!(abs(-7), 7);
        assert!(library.symbol(c"no_such_function").is_err());
        let error = Library::load(Path::new("/no/such/library.so")).expect_err("no file");
        assert!(error.to_string().contains("no/such"), "{error}");
    }
}
