//! Parsing of `reduce`, `foreach` and destructuring patterns.

use rule_values::Value;

use super::lex::JqToken;
use super::parse::{JqParser, Parsed};
use super::term::{BindingPattern, Fold, PatternEntry, Term, TermKind};

impl<'a> JqParser<'a> {
    /// `source as pattern (init; update)`, for `foreach` with a third filter.
    pub(super) fn fold(&mut self) -> Parsed<(Fold, Option<Term>)> {
        let source = self.suffixed()?;
        self.expect("as")?;
        let scope = self.scope.len();
        let pattern = self.pattern()?;
        self.expect("(")?;
        // `init` cannot use the variables of the element.
        let element = self.scope.split_off(scope);
        let init = self.pipe()?;
        self.scope.extend(element);
        self.expect(";")?;
        let update = self.pipe()?;
        let extract = match self.take(";")? {
            true => Some(self.pipe()?),
            false => None,
        };
        self.expect(")")?;
        self.scope.truncate(scope);
        let fold = Fold {
            source,
            pattern,
            init,
            update,
        };
        Ok((fold, extract))
    }

    pub(super) fn pattern(&mut self) -> Parsed<BindingPattern> {
        self.nested(|parser| {
            if parser.take("[")? {
                let mut elements = Vec::new();
                loop {
                    elements.push(parser.pattern()?);
                    if !parser.take(",")? {
                        parser.expect("]")?;
                        return Ok(BindingPattern::Array(elements));
                    }
                }
            }
            if parser.take("{")? {
                let mut entries = Vec::new();
                loop {
                    entries.push(parser.pattern_entry()?);
                    if !parser.take(",")? {
                        parser.expect("}")?;
                        return Ok(BindingPattern::Object(entries));
                    }
                }
            }
            let name = parser.variable_name()?;
            Ok(BindingPattern::Variable(parser.bind(name)))
        })
    }

    pub(super) fn pattern_entry(&mut self) -> Parsed<(PatternEntry, Option<BindingPattern>)> {
        let (token, end) = self.peek()?;
        let at = self.at;
        let literal = |text: &str| TermKind::Literal(Value::from(text));
        let (name, variable) = match token {
            JqToken::Variable(name) => {
                self.at = end;
                let id = self.bind(name);
                (self.term(at, literal(name))?, Some(id))
            }
            JqToken::Name(name) => {
                self.at = end;
                (self.term(at, literal(name))?, None)
            }
            JqToken::Quote => (self.string(None)?, None),
            JqToken::Symbol("(") => {
                self.at = end;
                let name = self.pipe()?;
                self.expect(")")?;
                (name, None)
            }
            other => return self.unexpected(other, "a key"),
        };
        let pattern = match self.take(":")? {
            true => Some(self.pattern()?),
            false if variable.is_none() => {
                let found = self.peek()?.0;
                return self.unexpected(found, ":");
            }
            false => None,
        };
        Ok((PatternEntry { name, variable }, pattern))
    }
}
