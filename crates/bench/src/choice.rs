//! The choices of `--only`: the cases to run, and their contenders.

/// A choice such as `4k-randread*/rs:4+2`, `ram` or `*-qd1`: a case, a contender, or both with a
/// slash between them. A star stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    text: String,
}

impl std::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.matches('/').count() > 1 {
            return Err("write CASE, CONTENDER or CASE/CONTENDER, with * for anything".to_owned());
        }
        Ok(Self { text: text.to_owned() })
    }
}

impl Choice {
    /// The text of the choice.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if the choice includes this case with this contender.
    pub fn takes(&self, case: &str, contender: &str) -> bool {
        match self.text.split_once('/') {
            Some((cases, contenders)) => matches(cases, case) && matches(contenders, contender),
            None => matches(&self.text, case) || matches(&self.text, contender),
        }
    }
}

/// True if a choice includes this case with this contender, or if there is no choice.
pub fn chosen(choices: &[Choice], case: &str, contender: &str) -> bool {
    choices.is_empty() || choices.iter().any(|choice| choice.takes(case, contender))
}

/// Refuses a choice that includes nothing.
///
/// # Errors
/// It names the choice, and everything that there is.
pub fn check(choices: &[Choice], cases: &[String], contenders: &[&str]) -> anyhow::Result<()> {
    let met = |choice: &Choice| {
        let any = |case: &String| contenders.iter().any(|contender| choice.takes(case, contender));
        cases.iter().any(any)
    };
    match choices.iter().find(|choice| !met(choice)) {
        None => Ok(()),
        Some(choice) => anyhow::bail!(
            "--only {} takes nothing; the cases are {}; the contenders are {}",
            choice.text(),
            cases.join(" "),
            contenders.join(" ")
        ),
    }
}

/// Matches a pattern with stars. An empty pattern matches everything, so that `/ram` and `*/ram`
/// are the same.
fn matches(pattern: &str, text: &str) -> bool {
    if pattern.is_empty() {
        return true;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        // The part before this one is not the last, so it may match anywhere. The earliest match is
        // best.
        if let Some(part) = last.replace(part) {
            let part: &str = part;
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(part) => rest.ends_with(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text) in [
            ("ram", "ram"),
            ("", "anything"),
            ("*", ""),
            ("*", "x"),
            ("rs*", "rs:4+2"),
            ("rs*", "rs"),
            ("*qd1", "4k-randread-qd1"),
            ("4k-*-qd32", "4k-randread-qd32"),
            ("*rand*", "4k-randread-qd32"),
            ("a*b*b", "abb"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("ram", "ramp"),
            ("ram", "cram"),
            ("*qd1", "4k-randread-qd32"),
            ("a*b*b", "ab"),
            ("ab*b", "ab"),
            ("4k*x*", "4k-randread"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_choice_names_a_case_or_a_contender_or_both() {
        let takes = |choice: &str, case: &str, contender: &str| {
            choice.parse::<Choice>().expect("a choice").takes(case, contender)
        };
        assert!(takes("ram", "4k-randread-qd1", "ram"));
        assert!(takes("4k-randread-qd1", "4k-randread-qd1", "nbdkit-file"));
        assert!(takes("4k-*/rs:4+2", "4k-randread-qd1", "rs:4+2"));
        assert!(!takes("4k-*/rs:4+2", "4k-randread-qd1", "rs:4+2-direct"));
        assert!(takes("/ram", "4k-randread-qd1", "ram"));
        assert!(!takes("/ram", "4k-randread-qd1", "raw-disk"));
        assert!("a/b/c".parse::<Choice>().is_err() && "".parse::<Choice>().is_err());
        assert!(chosen(&[], "x", "y"));
    }

    #[test]
    fn a_choice_that_includes_nothing_is_refused() {
        let check_text = |text: &str| {
            let choice = text.parse::<Choice>().expect("a choice");
            check(&[choice], &["open".to_owned(), "4k".to_owned()], &["ram", "raw-disk"])
        };
        assert!(check_text("open/ram").is_ok() && check_text("raw*").is_ok());
        let refused = check_text("8k/ram").expect_err("no such case").to_string();
        assert!(refused.contains("8k/ram takes nothing"), "{refused}");
        assert!(refused.contains("open 4k") && refused.contains("ram raw-disk"), "{refused}");
    }
}
