//! What gives names to values: `reduce`, `foreach`, and patterns that take values apart.

use super::lex::Token;
use super::parse::{Parsed, Parser};
use super::term::{Fold, Form, Key, Pattern, Term};
use crate::value::Value;

impl<'a> Parser<'a> {
    /// `source as pattern (init; update)`, for `foreach` with a third filter.
    pub(super) fn fold(&mut self) -> Parsed<(Fold, Option<Term>)> {
        let source = self.suffixed()?;
        self.expect("as")?;
        let scope = self.scope.len();
        let pattern = self.pattern()?;
        self.expect("(")?;
        // It does not see the element.
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

    pub(super) fn pattern(&mut self) -> Parsed<Pattern> {
        self.nested(|parser| {
            if parser.take("[")? {
                let mut elements = Vec::new();
                loop {
                    elements.push(parser.pattern()?);
                    if !parser.take(",")? {
                        parser.expect("]")?;
                        return Ok(Pattern::Array(elements));
                    }
                }
            }
            if parser.take("{")? {
                let mut entries = Vec::new();
                loop {
                    entries.push(parser.pattern_entry()?);
                    if !parser.take(",")? {
                        parser.expect("}")?;
                        return Ok(Pattern::Object(entries));
                    }
                }
            }
            let name = parser.variable_name()?;
            Ok(Pattern::Variable(parser.bind(name)))
        })
    }

    pub(super) fn pattern_entry(&mut self) -> Parsed<(Key, Option<Pattern>)> {
        let (token, end) = self.peek()?;
        let at = self.at;
        let literal = |text: &str| Form::Literal(Value::from(text));
        let (name, variable) = match token {
            Token::Variable(name) => {
                self.at = end;
                let id = self.bind(name);
                (self.term(at, literal(name))?, Some(id))
            }
            Token::Name(name) => {
                self.at = end;
                (self.term(at, literal(name))?, None)
            }
            Token::Quote => (self.string(None)?, None),
            Token::Symbol("(") => {
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
        Ok((Key { name, variable }, pattern))
    }
}
