//! Parses the text of a jq program to a `Term`, with the precedence of jq 1.7. Names are resolved during parsing. Each
//! error has a position.

use rule_values::{Value, nearest};

use super::builtins;
use super::lex::JqToken;
use super::term::{
    BinaryOperation, CallTarget, Conditional, Def, FunctionCall, LogicalOperation, Native, Operator, Param, SliceTerm,
    Term, TermKind, TextFormat, UpdateOperation, Updating,
};

/// Maximum nesting of parentheses and similar constructs in the text.
const NESTING_MAX: u16 = 64;
/// Maximum height of a compiled program.
pub(super) const HEIGHT_MAX: u16 = 200;

const KEYWORDS: [&str; 16] = [
    "def", "if", "then", "elif", "else", "end", "as", "reduce", "foreach", "try", "catch", "label", "import",
    "include", "and", "or",
];

/// Functions of jq that are not useful in a rule.
const ABSENT: [(&str, &str); 14] = [
    ("input", "a rule has only one input"),
    ("inputs", "a rule has only one input"),
    (
        "debug",
        "output to a console is not available; `tail` shows the outputs of a rule",
    ),
    ("stderr", "output to a console is not available"),
    ("env", "use getenv of the rule"),
    ("halt", "a rule cannot end the process"),
    ("halt_error", "use error"),
    ("input_filename", "files are not available"),
    ("input_line_number", "files are not available"),
    ("get_search_list", "modules are not supported"),
    (
        "strptime",
        "fromdate reads ISO 8601; date_to_unix_ts of the rule reads other forms",
    ),
    ("localtime", "use gmtime"),
    ("strflocaltime", "use strftime"),
    ("getpath_or_null", "use getpath"),
];

/// A syntax error in a program, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// Byte position.
    pub at: usize,
    pub message: String,
}

pub(super) type Parsed<T> = Result<T, SyntaxError>;

/// The meaning of a name.
pub(super) enum ScopeEntry<'a> {
    Variable(&'a str, u32),
    Param(&'a str, u32),
    Def(&'a str, usize, u32),
    Label(&'a str, u32),
}

/// Name of a function and the number of its parameters.
pub(super) type FunctionName = (String, usize);

/// Names of the functions that programs can call in addition to their own.
pub(super) struct PreludeNames<'p> {
    pub prelude: &'p [FunctionName],
}

pub(super) struct JqParser<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) scope: Vec<ScopeEntry<'a>>,
    next_id: u32,
    nesting: u16,
    names: PreludeNames<'a>,
}

/// Parses a complete program.
pub(super) fn program(text: &str, names: PreludeNames<'_>) -> Parsed<Term> {
    let mut parser = JqParser::new(text, names);
    let term = match parser.peek()?.0 {
        JqToken::End => parser.term(0, TermKind::Identity)?,
        _ => parser.pipe()?,
    };
    match parser.peek()?.0 {
        JqToken::End => Ok(term),
        other => parser.unexpected(other, "an operator or the end"),
    }
}

/// Parses a list of definitions. Each can call the definitions before it.
pub(super) fn definitions(text: &str) -> Parsed<(Vec<FunctionName>, Vec<Def>)> {
    let (mut names, mut defs) = (Vec::new(), Vec::new());
    let mut at = 0;
    loop {
        let mut parser = JqParser::new(text, PreludeNames { prelude: &names });
        parser.at = at;
        if parser.peek()?.0 == JqToken::End {
            return Ok((names, defs));
        }
        let (name, def) = parser.def()?;
        let name = (name.to_owned(), def.params.len());
        at = parser.at;
        names.push(name);
        defs.push(def);
    }
}

impl<'a> JqParser<'a> {
    pub(super) fn new(text: &'a str, names: PreludeNames<'a>) -> JqParser<'a> {
        JqParser {
            text,
            at: 0,
            scope: Vec::new(),
            next_id: 0,
            nesting: 0,
            names,
        }
    }

    pub(super) fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn error<T>(&self, at: usize, message: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError {
            at,
            message: message.into(),
        })
    }

    pub(super) fn unexpected<T>(&mut self, found: JqToken<'_>, expected: &str) -> Parsed<T> {
        self.skip_blank();
        let found = match found {
            JqToken::Field(name) => format!(".{name}"),
            JqToken::Name(name) | JqToken::Number(name) => name.to_owned(),
            JqToken::Variable(name) => format!("${name}"),
            JqToken::Format(name) => format!("@{name}"),
            JqToken::Quote => "a string".to_owned(),
            JqToken::Symbol(symbol) => symbol.to_owned(),
            JqToken::End => "the end".to_owned(),
        };
        self.error(self.at, format!("found {found}, expected {expected}"))
    }

    pub(super) fn is_next(&mut self, symbol: &str) -> Parsed<bool> {
        Ok(matches!(self.peek()?.0, JqToken::Symbol(found) if found == symbol))
    }

    pub(super) fn take(&mut self, symbol: &str) -> Parsed<bool> {
        let (token, end) = self.peek()?;
        let is_it = matches!(token, JqToken::Symbol(found) if found == symbol)
            || matches!(token, JqToken::Name(found) if found == symbol);
        if is_it {
            self.at = end;
        }
        Ok(is_it)
    }

    pub(super) fn expect(&mut self, symbol: &str) -> Parsed<()> {
        match self.take(symbol)? {
            true => Ok(()),
            false => {
                let found = self.peek()?.0;
                self.unexpected(found, symbol)
            }
        }
    }

    pub(super) fn variable_name(&mut self) -> Parsed<&'a str> {
        match self.peek()? {
            (JqToken::Variable(name), end) => {
                self.at = end;
                Ok(name)
            }
            (other, _) => self.unexpected(other, "a variable"),
        }
    }

    pub(super) fn term(&self, at: usize, form: TermKind) -> Parsed<Term> {
        let height = 1 + form.height();
        if height > HEIGHT_MAX {
            return self.error(at, format!("the program nests deeper than {HEIGHT_MAX} levels"));
        }
        Ok(Term {
            kind: form,
            at: at as u32,
            height,
        })
    }

    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting >= NESTING_MAX {
            return self.error(self.at, format!("the program nests deeper than {NESTING_MAX} levels"));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// The lowest precedence: definitions and pipes.
    pub(super) fn pipe(&mut self) -> Parsed<Term> {
        self.nested(|parser| {
            let scope = parser.scope.len();
            let (mut defs, mut stages) = (Vec::new(), Vec::new());
            let last = loop {
                parser.skip_blank();
                let at = parser.at;
                if matches!(parser.peek()?.0, JqToken::Name("def")) {
                    defs.push((at, stages.len(), parser.def()?.1));
                    continue;
                }
                let stage = parser.comma()?;
                if !parser.take("|")? {
                    break stage;
                }
                stages.push(stage);
            };
            parser.scope.truncate(scope);
            parser.joined(defs, stages, last)
        })
    }

    /// Joins the stages from the last to the first: the body of a definition or stage is everything after it.
    pub(super) fn joined(&self, mut defs: Vec<(usize, usize, Def)>, stages: Vec<Term>, last: Term) -> Parsed<Term> {
        let mut term = last;
        let mut stages: Vec<Term> = stages;
        loop {
            let before = defs.last().map_or(0, |(_, stage, _)| *stage);
            while stages.len() > before
                && let Some(stage) = stages.pop()
            {
                let at = stage.at as usize;
                term = self.term(at, TermKind::Pipe(Box::new(stage), Box::new(term)))?;
            }
            let Some((at, _, def)) = defs.pop() else {
                return Ok(term);
            };
            term = self.term(at, TermKind::Def(Box::new(def), Box::new(term)))?;
        }
    }

    /// `def name(params): body;` The name is known from here on, also in the body.
    pub(super) fn def(&mut self) -> Parsed<(&'a str, Def)> {
        self.expect("def")?;
        let name = match self.peek()? {
            (JqToken::Name(name), end) if !KEYWORDS.contains(&name) => {
                self.at = end;
                name
            }
            (other, _) => return self.unexpected(other, "the name of a function"),
        };
        let mut params = Vec::new();
        if self.take("(")? {
            loop {
                match self.peek()? {
                    (JqToken::Name(name), end) => {
                        self.at = end;
                        params.push((name, false));
                    }
                    (JqToken::Variable(name), end) => {
                        self.at = end;
                        params.push((name, true));
                    }
                    (other, _) => return self.unexpected(other, "the name of a parameter"),
                }
                if !self.take(";")? {
                    break;
                }
            }
            self.expect(")")?;
        }
        self.expect(":")?;
        let id = self.id();
        self.scope.push(ScopeEntry::Def(name, params.len(), id));
        let scope = self.scope.len();
        let params = params
            .into_iter()
            .map(|(name, is_value)| self.param(name, is_value))
            .collect();
        let body = self.pipe()?;
        self.scope.truncate(scope);
        self.expect(";")?;
        Ok((name, Def { id, params, body }))
    }

    pub(super) fn param(&mut self, name: &'a str, is_value: bool) -> Param {
        let id = self.id();
        self.scope.push(ScopeEntry::Param(name, id));
        let variable = is_value.then(|| self.bind(name));
        Param { id, variable }
    }

    pub(super) fn bind(&mut self, name: &'a str) -> u32 {
        let id = self.id();
        self.scope.push(ScopeEntry::Variable(name, id));
        id
    }

    pub(super) fn comma(&mut self) -> Parsed<Term> {
        let mut left = self.binary(0)?;
        while self.take(",")? {
            let right = self.binary(0)?;
            left = self.term(left.at as usize, TermKind::Comma(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    /// Parses operators with at least this precedence.
    pub(super) fn binary(&mut self, least: u8) -> Parsed<Term> {
        let mut left = self.postfix()?;
        let mut not_again = u8::MAX;
        loop {
            let (JqToken::Symbol(symbol), end) = self.peek()? else {
                return Ok(left);
            };
            let Some((strength, side)) = strength(symbol) else {
                return Ok(left);
            };
            if strength < least {
                return Ok(left);
            }
            if strength == not_again {
                return self.error(self.at, format!("found {symbol}, which needs parentheses here"));
            }
            self.at = end;
            let right = self.nested(|parser| match side {
                Side::Left | Side::None => parser.binary(strength + 1),
                Side::Right => parser.binary(strength),
            })?;
            if side == Side::None {
                not_again = strength;
            }
            let form = operation(symbol, Box::new(left), Box::new(right));
            left = self.term(end - symbol.len(), form)?;
        }
    }

    pub(super) fn postfix(&mut self) -> Parsed<Term> {
        let term = self.suffixed()?;
        if !matches!(self.peek()?.0, JqToken::Name("as")) {
            return Ok(term);
        }
        self.expect("as")?;
        let scope = self.scope.len();
        let at = term.at as usize;
        let pattern = self.pattern()?;
        self.skip_blank();
        if self.text[self.at..].starts_with("?//") {
            return self.error(self.at, "found ?//, which is not supported: use if with type");
        }
        self.expect("|")?;
        let body = self.pipe()?;
        self.scope.truncate(scope);
        self.term(at, TermKind::Bind(Box::new(term), pattern, Box::new(body)))
    }

    /// Parses a term followed by `.name`, `[…]` or `?`.
    pub(super) fn suffixed(&mut self) -> Parsed<Term> {
        let mut term = self.primary()?;
        loop {
            let at = self.at;
            term = match self.peek()? {
                (JqToken::Field(name), end) => {
                    self.at = end;
                    let key = self.term(at, TermKind::Literal(Value::from(name)))?;
                    self.term(at, TermKind::Index(Box::new(term), Box::new(key)))?
                }
                (JqToken::Symbol("?"), end) => {
                    self.at = end;
                    self.term(at, TermKind::Try(Box::new(term), None))?
                }
                (JqToken::Symbol("["), _) => self.bracket(term)?,
                (JqToken::Symbol("."), end) => {
                    self.at = end;
                    match self.peek()?.0 {
                        JqToken::Symbol("[") => self.bracket(term)?,
                        JqToken::Quote => {
                            let key = self.string(None)?;
                            self.term(at, TermKind::Index(Box::new(term), Box::new(key)))?
                        }
                        other => return self.unexpected(other, "a field"),
                    }
                }
                _ => return Ok(term),
            }
        }
    }

    /// Parses `[]`, `[key]` or `[from:to]` after a term.
    pub(super) fn bracket(&mut self, of: Term) -> Parsed<Term> {
        let at = self.at;
        self.expect("[")?;
        let of = Box::new(of);
        if self.take("]")? {
            return self.term(at, TermKind::Iterate(of));
        }
        if self.take(":")? {
            let to = self.pipe()?;
            self.expect("]")?;
            let (from, to) = (None, Some(Box::new(to)));
            return self.term(at, TermKind::Slice(SliceTerm { of, from, to }));
        }
        let key = self.pipe()?;
        if !self.take(":")? {
            self.expect("]")?;
            return self.term(at, TermKind::Index(of, Box::new(key)));
        }
        let to = match self.is_next("]")? {
            true => None,
            false => Some(Box::new(self.pipe()?)),
        };
        self.expect("]")?;
        let from = Some(Box::new(key));
        self.term(at, TermKind::Slice(SliceTerm { of, from, to }))
    }

    pub(super) fn primary(&mut self) -> Parsed<Term> {
        let (token, end) = self.peek()?;
        let at = self.at;
        match token {
            JqToken::Quote => return self.string(None),
            JqToken::Symbol("(") => {
                self.at = end;
                let term = self.pipe()?;
                self.expect(")")?;
                return Ok(term);
            }
            JqToken::Symbol("[") => return self.array(),
            JqToken::Symbol("{") => return self.nested(JqParser::object),
            JqToken::Symbol("-") => {
                self.at = end;
                let of = self.nested(JqParser::postfix)?;
                return self.term(at, TermKind::Negate(Box::new(of)));
            }
            JqToken::Name(name) => return self.nested(|parser| parser.named(name, end)),
            _ => self.at = end,
        }
        let form = match token {
            JqToken::Field(name) => {
                let (identity, key) = (self.term(at, TermKind::Identity)?, TermKind::Literal(Value::from(name)));
                TermKind::Index(Box::new(identity), Box::new(self.term(at, key)?))
            }
            JqToken::Symbol("..") => TermKind::Descend,
            JqToken::Symbol(".") if self.text.as_bytes().get(self.at) == Some(&b'"') => {
                let identity = self.term(at, TermKind::Identity)?;
                let key = self.string(None)?;
                TermKind::Index(Box::new(identity), Box::new(key))
            }
            JqToken::Symbol(".") => TermKind::Identity,
            JqToken::Variable(name) => return self.variable(name, at),
            JqToken::Number(digits) => TermKind::Literal(number(digits)),
            JqToken::Format(name) => {
                let Some(format) = TextFormat::from_name(name) else {
                    return self.error(at, format!("found @{name}, which is not a format"));
                };
                if self.peek()?.0 == JqToken::Quote {
                    return self.string(Some(format));
                }
                TermKind::Format(format)
            }
            other => {
                self.at = at;
                return self.unexpected(other, "a term");
            }
        };
        self.term(at, form)
    }

    pub(super) fn variable(&mut self, name: &str, at: usize) -> Parsed<Term> {
        let found = self.scope.iter().rev().find_map(|entry| match entry {
            ScopeEntry::Variable(known, id) if *known == name => Some(*id),
            _ => None,
        });
        match found {
            Some(id) => self.term(at, TermKind::Variable(id)),
            None if name == "ENV" => self.error(at, "found $ENV: use getenv of the rule"),
            None => self.error(at, format!("found ${name}, which is not defined")),
        }
    }

    pub(super) fn array(&mut self) -> Parsed<Term> {
        let at = self.at;
        self.expect("[")?;
        if self.take("]")? {
            return self.term(at, TermKind::Array(None));
        }
        let of = self.pipe()?;
        self.expect("]")?;
        self.term(at, TermKind::Array(Some(Box::new(of))))
    }

    pub(super) fn object(&mut self) -> Parsed<Term> {
        let at = self.at;
        self.expect("{")?;
        let mut entries = Vec::new();
        while !self.take("}")? {
            entries.push(self.entry()?);
            if !self.take(",")? {
                self.expect("}")?;
                break;
            }
        }
        self.term(at, TermKind::Object(entries))
    }

    pub(super) fn entry(&mut self) -> Parsed<(Term, Term)> {
        let (token, end) = self.peek()?;
        let at = self.at;
        let literal = |text: &str| TermKind::Literal(Value::from(text));
        let key = match token {
            JqToken::Variable(name) => {
                self.at = end;
                return Ok((self.term(at, literal(name))?, self.variable(name, at)?));
            }
            JqToken::Name(name) => {
                self.at = end;
                self.term(at, literal(name))?
            }
            JqToken::Symbol(word @ ("and" | "or")) => {
                self.at = end;
                self.term(at, literal(word))?
            }
            JqToken::Number(digits) => {
                self.at = end;
                self.term(at, literal(digits))?
            }
            JqToken::Quote => self.string(None)?,
            JqToken::Format(_) => self.primary()?,
            JqToken::Symbol("(") => {
                self.at = end;
                let key = self.pipe()?;
                self.expect(")")?;
                self.expect(":")?;
                let value = self.object_value()?;
                return Ok((key, value));
            }
            other => return self.unexpected(other, "a key"),
        };
        if self.take(":")? {
            let value = self.object_value()?;
            return Ok((key, value));
        }
        let again = match &key.kind {
            TermKind::Literal(name) => self.term(at, TermKind::Literal(name.clone()))?,
            _ => {
                // Parse a computed key again: it is also the name of the field.
                self.at = at;
                match token {
                    JqToken::Quote => self.string(None)?,
                    _ => self.primary()?,
                }
            }
        };
        let identity = self.term(at, TermKind::Identity)?;
        let value = self.term(at, TermKind::Index(Box::new(identity), Box::new(again)))?;
        Ok((key, value))
    }

    /// Without commas. Pipes of terms are allowed.
    pub(super) fn object_value(&mut self) -> Parsed<Term> {
        let mut term = self.binary(0)?;
        if self.take("|")? {
            let rest = self.nested(JqParser::object_value)?;
            term = self.term(term.at as usize, TermKind::Pipe(Box::new(term), Box::new(rest)))?;
        }
        Ok(term)
    }

    pub(super) fn named(&mut self, name: &'a str, end: usize) -> Parsed<Term> {
        let at = self.at;
        self.at = end;
        let form = match name {
            "if" => return self.conditional(at),
            "try" => {
                let body = self.suffixed()?;
                let handler = match self.take("catch")? {
                    true => Some(Box::new(self.suffixed()?)),
                    false => None,
                };
                TermKind::Try(Box::new(body), handler)
            }
            "reduce" => TermKind::Reduce(Box::new(self.fold()?.0)),
            "foreach" => {
                let (fold, extract) = self.fold()?;
                TermKind::Foreach(Box::new(fold), extract.map(Box::new))
            }
            "label" => {
                let name = self.variable_name()?;
                let id = self.id();
                self.scope.push(ScopeEntry::Label(name, id));
                let scope = self.scope.len() - 1;
                self.expect("|")?;
                let body = self.pipe()?;
                self.scope.truncate(scope);
                TermKind::Label(id, Box::new(body))
            }
            "break" => {
                let name = self.variable_name()?;
                let label = self.scope.iter().rev().find_map(|entry| match entry {
                    ScopeEntry::Label(known, id) if *known == name => Some(*id),
                    _ => None,
                });
                match label {
                    Some(id) => TermKind::Break(id),
                    None => return self.error(at, format!("found break ${name}, but there is no label ${name}")),
                }
            }
            "def" => {
                self.at = at;
                return self.pipe();
            }
            "import" | "include" => return self.error(at, format!("found {name}: modules are not supported")),
            name if KEYWORDS.contains(&name) => {
                self.at = at;
                return self.unexpected(JqToken::Name(name), "a term");
            }
            name => return self.call(name, at),
        };
        self.term(at, form)
    }

    pub(super) fn conditional(&mut self, at: usize) -> Parsed<Term> {
        let condition = self.pipe()?;
        self.expect("then")?;
        let then = self.pipe()?;
        let begin = self.at;
        let otherwise = if self.take("elif")? {
            Some(self.nested(|parser| parser.conditional(begin))?)
        } else {
            let otherwise = match self.take("else")? {
                true => Some(self.pipe()?),
                false => None,
            };
            self.expect("end")?;
            otherwise
        };
        let choice = Conditional {
            condition: Box::new(condition),
            then: Box::new(then),
            otherwise: otherwise.map(Box::new),
        };
        self.term(at, TermKind::If(choice))
    }

    pub(super) fn call(&mut self, name: &'a str, at: usize) -> Parsed<Term> {
        let mut arguments = Vec::new();
        if self.take("(")? {
            loop {
                arguments.push(self.pipe()?);
                if !self.take(";")? {
                    break;
                }
            }
            self.expect(")")?;
        }
        let form = match (name, arguments.len()) {
            ("null", 0) => TermKind::Literal(Value::Null),
            ("true", 0) => TermKind::Literal(Value::Bool(true)),
            ("false", 0) => TermKind::Literal(Value::Bool(false)),
            _ => TermKind::Call(FunctionCall {
                target: self.target(name, arguments.len(), at)?,
                arguments,
            }),
        };
        self.term(at, form)
    }

    pub(super) fn target(&self, name: &str, arity: usize, at: usize) -> Parsed<CallTarget> {
        let own = self.scope.iter().rev().find_map(|entry| match entry {
            ScopeEntry::Param(known, id) if *known == name && arity == 0 => Some(CallTarget::Param(*id)),
            ScopeEntry::Def(known, params, id) if *known == name && *params == arity => Some(CallTarget::Def(*id)),
            _ => None,
        });
        if let Some(target) = own {
            return Ok(target);
        }
        let is_meant = |(known, params): &FunctionName| known == name && *params == arity;
        if let Some(index) = self.names.prelude.iter().rposition(is_meant) {
            return Ok(CallTarget::Prelude(index));
        }
        if let Some(native) = native(name, arity) {
            return Ok(CallTarget::Native(native));
        }
        self.error(at, self.unknown(name, arity))
    }

    pub(super) fn unknown(&self, name: &str, arity: usize) -> String {
        if let Some((_, reason)) = ABSENT.iter().find(|(absent, _)| *absent == name) {
            return format!("{name} is not supported: {reason}");
        }
        let prelude = self.names.prelude.iter().map(|(name, arity)| (name.as_str(), *arity));
        let natives = builtins::NATIVES.iter().map(|(name, arity, _)| (*name, *arity));
        let known: Vec<(&str, usize)> = prelude.chain(natives).filter(|it| !it.0.starts_with('_')).collect();
        let arities: Vec<String> = known
            .iter()
            .filter(|it| it.0 == name)
            .map(|it| it.1.to_string())
            .collect();
        if !arities.is_empty() {
            let arities = arities.join(" or ");
            return format!("{name} has {arities} arguments, not {arity}");
        }
        match nearest(name, known.iter().map(|it| it.0)) {
            Some(near) => format!("unknown function {name}/{arity} (did you mean {near}?)"),
            None => format!("unknown function {name}/{arity}"),
        }
    }
}

fn native(name: &str, arity: usize) -> Option<Native> {
    let found = builtins::NATIVES.iter().find(|it| it.0 == name && it.1 == arity);
    found.map(|it| it.2)
}

fn number(digits: &str) -> Value {
    match digits.parse::<i64>() {
        Ok(int) => Value::from(int),
        Err(_) => super::values::number(digits.parse().unwrap_or(f64::INFINITY)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    None,
}

/// Returns the precedence and associativity of an operator.
fn strength(symbol: &str) -> Option<(u8, Side)> {
    Some(match symbol {
        "//" => (1, Side::Right),
        "=" | "|=" | "+=" | "-=" | "*=" | "/=" | "%=" | "//=" => (2, Side::None),
        "or" => (3, Side::Left),
        "and" => (4, Side::Left),
        "==" | "!=" | "<" | "<=" | ">" | ">=" => (5, Side::None),
        "+" | "-" => (6, Side::Left),
        "*" | "/" | "%" => (7, Side::Left),
        _ => return None,
    })
}

fn operation(symbol: &str, left: Box<Term>, right: Box<Term>) -> TermKind {
    let arithmetic = match symbol.trim_end_matches('=') {
        "+" => Some(Operator::Add),
        "-" => Some(Operator::Subtract),
        "*" => Some(Operator::Multiply),
        "/" => Some(Operator::Divide),
        "%" => Some(Operator::Modulo),
        _ => None,
    };
    let operator = match (symbol, arithmetic) {
        ("//", _) => return TermKind::Alternative(left, right),
        ("=", _) => return TermKind::Assign(left, right),
        ("|=", _) => return TermKind::Update(left, right),
        ("or" | "and", _) => {
            let deciding = symbol == "or";
            return TermKind::Logical(LogicalOperation { left, right, deciding });
        }
        ("//=", _) => {
            let how = Updating::Alternative;
            return TermKind::UpdateBy(UpdateOperation { how, left, right });
        }
        (symbol, Some(operator)) if symbol.ends_with('=') => {
            let how = Updating::By(operator);
            return TermKind::UpdateBy(UpdateOperation { how, left, right });
        }
        (_, Some(operator)) => operator,
        ("!=", _) => Operator::Unequal,
        ("<", _) => Operator::Less,
        ("<=", _) => Operator::LessOrEqual,
        (">", _) => Operator::Greater,
        (">=", _) => Operator::GreaterOrEqual,
        _ => Operator::Equal,
    };
    TermKind::Binary(BinaryOperation { operator, left, right })
}
