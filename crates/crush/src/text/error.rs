//! What can be wrong with a text map.

use thiserror::Error;

use super::lexer::Place;
use crate::check::BuildError;

/// Why a text is no map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}, column {column}: {problem}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: u32,
    /// The character of the line, from 1.
    pub column: u32,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong at a place of a text map. Words are cut to a length that can be shown.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// Something else should be here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What the language allows here.
        expected: &'static str,
        /// The word that is here, or the end.
        found: String,
    },
    /// A word that is not among those that have a meaning here.
    #[error("unknown {what} `{found}`; there are {known}")]
    Unknown {
        /// What it should be.
        what: &'static str,
        /// The word.
        found: String,
        /// Those that there are.
        known: String,
    },
    /// A number that is none, or does not fit.
    #[error("{what} is a number from {from} to {to}, not `{found}`")]
    Number {
        /// What it should be.
        what: &'static str,
        /// The word.
        found: String,
        /// The least.
        from: i64,
        /// The greatest.
        to: i64,
    },
    /// A weight that is none, or does not fit.
    #[error(
        "a weight is a number from 0 to below 65536, like 1.50000, not `{found}`{}",
        if found.starts_with('-') {
            " (crushtool prints 65536 too little for weights of 32768 and more: add that)"
        } else {
            ""
        }
    )]
    Weight {
        /// The word.
        found: String,
    },
    /// A name that stands for nothing.
    #[error("no {what} is called `{name}`; it must be defined before it is used")]
    Undefined {
        /// What it should be.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name or number that is taken.
    #[error("{what} `{name}` is already defined")]
    Duplicate {
        /// What it is.
        what: &'static str,
        /// The name or number.
        name: String,
    },
    /// A position that is taken or past the end.
    #[error("position {position} is taken, or not below the number of items, which is {items}")]
    Position {
        /// The position.
        position: usize,
        /// Items of the bucket.
        items: usize,
    },
    /// Items of a uniform bucket that weigh differently.
    #[error("the items of a uniform bucket must all weigh the same as the first, {first}")]
    NotUniform {
        /// What the first item weighs.
        first: String,
    },
    /// A bucket too heavy.
    #[error("the items of bucket `{bucket}` weigh 65536 or more together; lower their weights")]
    TooHeavy {
        /// The bucket.
        bucket: String,
    },
    /// A bucket that would have no shadows.
    #[error("bucket `{bucket}` must stand before the first rule, for this map has classes")]
    AfterRules {
        /// The bucket.
        bucket: String,
    },
    /// A step that takes a shadow which is not there.
    #[error(
        "`{item}` has no shadow of class `{class}`: only buckets have, and none are made from the \
         first uniform bucket on whose items of a class have weight"
    )]
    NoShadow {
        /// The item.
        item: String,
        /// The class.
        class: String,
    },
    /// More shadows than the bounds allow.
    #[error("the classes and buckets make too many shadow buckets")]
    TooManyShadows,
    /// A list as long as a bucket's items that is not.
    #[error("the bucket has {items} items, so {items} {what} are needed, not {found}")]
    Length {
        /// What the list holds.
        what: &'static str,
        /// Items of the bucket.
        items: usize,
        /// Members of the list.
        found: usize,
    },
    /// A number past the bounds of all maps.
    #[error(transparent)]
    Map(#[from] BuildError),
}

impl Problem {
    pub(super) fn at(self, place: Place) -> ParseError {
        ParseError { line: place.line, column: place.column, problem: self }
    }
}

/// A word as messages show it.
pub(super) fn shown(word: &str) -> String {
    const MOST: usize = 40;
    match word.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &word[..end]),
        None => word.to_owned(),
    }
}
