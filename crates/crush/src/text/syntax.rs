//! Parses words into a tree, without checks of names and numbers.

use super::error::ParseError;
use super::lexer::{Lexer, Place, Word};

/// A whole text.
pub(super) struct Text<'a> {
    pub tunables: Vec<(Word<'a>, Word<'a>)>,
    pub devices: Vec<DeviceDecl<'a>>,
    pub types: Vec<(Word<'a>, Word<'a>)>,
    /// Buckets and rules, in the text's order.
    pub entries: Vec<Entry<'a>>,
    pub choose_args: Vec<ChooseArgs<'a>>,
    pub end: Place,
}

pub(super) struct DeviceDecl<'a> {
    pub number: Word<'a>,
    pub name: Word<'a>,
    pub class: Option<Word<'a>>,
}

pub(super) enum Entry<'a> {
    Bucket(Bucket<'a>),
    Rule(Rule<'a>),
}

pub(super) struct Bucket<'a> {
    pub kind: Word<'a>,
    pub name: Word<'a>,
    /// Numbers, and the class whose shadow the number is for.
    pub ids: Vec<(Word<'a>, Option<Word<'a>>)>,
    pub algorithm: Word<'a>,
    pub hashes: Vec<Word<'a>>,
    pub items: Vec<Item<'a>>,
}

pub(super) struct Item<'a> {
    pub name: Word<'a>,
    pub weight: Option<Word<'a>>,
    pub position: Option<Word<'a>>,
}

pub(super) struct Rule<'a> {
    pub place: Place,
    pub name: Option<Word<'a>>,
    pub number: Word<'a>,
    pub kind: Word<'a>,
    pub min_size: Option<Word<'a>>,
    pub max_size: Option<Word<'a>>,
    pub steps: Vec<Step<'a>>,
}

pub(super) enum Step<'a> {
    Noop,
    Emit,
    Take {
        item: Word<'a>,
        class: Option<Word<'a>>,
    },
    /// `choose` or `chooseleaf`, with `firstn` or `indep`; or `choosemsr`.
    Choose {
        verb: Word<'a>,
        mode: Option<Word<'a>>,
        count: Word<'a>,
        kind: Word<'a>,
    },
    /// `set_...`.
    Set {
        name: Word<'a>,
        value: Word<'a>,
    },
}

pub(super) struct ChooseArgs<'a> {
    pub number: Word<'a>,
    pub buckets: Vec<ChooseArg<'a>>,
}

pub(super) struct ChooseArg<'a> {
    pub bucket: Word<'a>,
    /// Lists of weights, each with its closing bracket.
    pub weight_sets: Vec<(Vec<Word<'a>>, Word<'a>)>,
    /// The list, with its closing bracket.
    pub ids: Option<(Vec<Word<'a>>, Word<'a>)>,
}

/// Reads a whole text.
pub(super) fn parse(text: &str) -> Result<Text<'_>, ParseError> {
    let mut lexer = Lexer::new(text);
    let place = lexer.peek().place;
    let mut tree = Text {
        tunables: Vec::new(),
        devices: Vec::new(),
        types: Vec::new(),
        entries: Vec::new(),
        choose_args: Vec::new(),
        end: place,
    };
    loop {
        let word = lexer.peek();
        match word.text {
            "tunable" | "device" | "type" => {
                if !tree.entries.is_empty() || !tree.choose_args.is_empty() {
                    return Err(word.expected(
                        "a bucket, a rule or choose_args; tunables, devices and types come before",
                    ));
                }
                head(&mut lexer, &mut tree)?;
            }
            "choose_args" => tree.choose_args.push(choose_args(&mut lexer)?),
            "" => {
                tree.end = word.place;
                return Ok(tree);
            }
            _ if !tree.choose_args.is_empty() => {
                return Err(word.expected("choose_args or the end; buckets and rules come before"));
            }
            "rule" => tree.entries.push(Entry::Rule(rule(&mut lexer)?)),
            _ => tree.entries.push(Entry::Bucket(bucket(&mut lexer)?)),
        }
    }
}

fn head<'a>(lexer: &mut Lexer<'a>, tree: &mut Text<'a>) -> Result<(), ParseError> {
    match lexer.next().text {
        "tunable" => {
            let name = lexer.name("the name of a tunable")?;
            tree.tunables.push((name, lexer.word("the value of the tunable")?));
        }
        "device" => {
            let number = lexer.word("the number of a device")?;
            let name = lexer.name("the name of the device")?;
            tree.devices.push(DeviceDecl { number, name, class: class(lexer)? });
        }
        _ => {
            let number = lexer.word("the number of a type")?;
            tree.types.push((number, lexer.name("the name of the type")?));
        }
    }
    Ok(())
}

fn class<'a>(lexer: &mut Lexer<'a>) -> Result<Option<Word<'a>>, ParseError> {
    if lexer.accept("class") { lexer.name("the name of a class").map(Some) } else { Ok(None) }
}

fn bucket<'a>(lexer: &mut Lexer<'a>) -> Result<Bucket<'a>, ParseError> {
    let kind = lexer.name("tunable, device, type, rule, choose_args, or the type of a bucket")?;
    let name = lexer.name("the name of a bucket")?;
    lexer.expect("{", "`{`")?;
    let mut ids = Vec::new();
    while lexer.accept("id") {
        let number = lexer.word("the number of the bucket")?;
        ids.push((number, class(lexer)?));
    }
    lexer.expect("alg", "`id` or `alg`")?;
    let algorithm = lexer.name("an algorithm")?;
    let mut hashes = Vec::new();
    while lexer.accept("hash") {
        hashes.push(lexer.word("a hash")?);
    }
    let mut items = Vec::new();
    while lexer.accept("item") {
        let name = lexer.name("the name of an item")?;
        let weight = lexer.accept("weight").then(|| lexer.word("a weight")).transpose()?;
        let position = lexer.accept("pos").then(|| lexer.word("a position")).transpose()?;
        items.push(Item { name, weight, position });
    }
    let expected =
        if items.is_empty() { "`hash`, `item` or `}`" } else { "`weight`, `pos`, `item` or `}`" };
    lexer.expect("}", expected)?;
    Ok(Bucket { kind, name, ids, algorithm, hashes, items })
}

fn rule<'a>(lexer: &mut Lexer<'a>) -> Result<Rule<'a>, ParseError> {
    let place = lexer.next().place;
    let name = match lexer.peek().text {
        "{" => None,
        _ => Some(lexer.name("the name of a rule")?),
    };
    lexer.expect("{", "`{`")?;
    if !lexer.accept("id") {
        lexer.expect("ruleset", "`id`")?;
    }
    let number = lexer.word("the number of the rule")?;
    lexer.expect("type", "`type`")?;
    let kind = lexer.word("the kind of rule")?;
    let mut size = |which| lexer.accept(which).then(|| lexer.word("a size")).transpose();
    let (min_size, max_size) = (size("min_size")?, size("max_size")?);
    let mut steps = Vec::new();
    while lexer.accept("step") {
        steps.push(step(lexer)?);
    }
    let expected =
        if steps.is_empty() { "`min_size`, `max_size`, `step` or `}`" } else { "`step` or `}`" };
    lexer.expect("}", expected)?;
    Ok(Rule { place, name, number, kind, min_size, max_size, steps })
}

fn step<'a>(lexer: &mut Lexer<'a>) -> Result<Step<'a>, ParseError> {
    let verb = lexer.word("a step")?;
    match verb.text {
        "noop" => Ok(Step::Noop),
        "emit" => Ok(Step::Emit),
        "take" => {
            let item = lexer.name("the name of a bucket or device")?;
            Ok(Step::Take { item, class: class(lexer)? })
        }
        "choose" | "chooseleaf" | "choosemsr" => {
            let mode = match verb.text {
                "choosemsr" => None,
                _ => Some(lexer.word("`firstn` or `indep`")?),
            };
            let count = lexer.word("a count")?;
            lexer.expect("type", "`type`")?;
            Ok(Step::Choose { verb, mode, count, kind: lexer.name("the name of a type")? })
        }
        _ => Ok(Step::Set { name: verb, value: lexer.word("the value of the step")? }),
    }
}

fn choose_args<'a>(lexer: &mut Lexer<'a>) -> Result<ChooseArgs<'a>, ParseError> {
    lexer.next();
    let number = lexer.word("the number of a pool")?;
    lexer.expect("{", "`{`")?;
    let mut buckets = Vec::new();
    while lexer.accept("{") {
        lexer.expect("bucket_id", "`bucket_id`")?;
        let bucket = lexer.word("the number of a bucket")?;
        let mut weight_sets = Vec::new();
        if lexer.accept("weight_set") {
            lexer.expect("[", "`[`")?;
            while lexer.accept("[") {
                weight_sets.push(list(lexer)?);
            }
            lexer.expect("]", "`[` or `]`")?;
        }
        let ids = if lexer.accept("ids") {
            lexer.expect("[", "`[`")?;
            Some(list(lexer)?)
        } else {
            None
        };
        lexer.expect("}", "`weight_set`, `ids` or `}`")?;
        buckets.push(ChooseArg { bucket, weight_sets, ids });
    }
    lexer.expect("}", "`{` or `}`")?;
    Ok(ChooseArgs { number, buckets })
}

/// Words up to the closing bracket, and the bracket.
fn list<'a>(lexer: &mut Lexer<'a>) -> Result<(Vec<Word<'a>>, Word<'a>), ParseError> {
    let mut words = Vec::new();
    loop {
        let next = lexer.peek();
        if next.text == "]" {
            return Ok((words, lexer.next()));
        }
        words.push(lexer.word("a number or `]`")?);
    }
}
