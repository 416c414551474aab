//! Encodings as their users have them: folders with files, hurt in every way.

mod damage;
mod folders;
mod round_trip;
mod strangers;
mod support;
