//! The definition of an option, and the macro that defines a section of options.
//!
//! `section!` is the only place that defines an option. It generates the typed struct that the program uses, the table
//! for the reference page, the example file, completion and `config show`, and the function that fills the struct.

use super::key::KeyPattern;
use super::value::{OptionValue, RawOptionValue, Reject, describe};

/// When a change takes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    Live,
    Restart,
}

/// One option as data.
#[derive(Debug)]
pub struct OptionDef {
    /// Without the path of the section. `<name>` stands for any one word.
    pub name: &'static str,
    /// The doc comment, one string per line.
    pub doc: &'static [&'static str],
    /// As text; empty when there is none.
    pub default: &'static str,
    pub range: Option<(&'static str, &'static str)>,
    /// Unit of an integer.
    pub unit: Option<&'static str>,
    pub apply: Apply,
    pub kind: Kind,
}

/// Properties of the type of an option, independent of the type.
#[derive(Debug)]
pub struct Kind {
    pub is_secret: bool,
    pub type_name: fn() -> String,
    pub choices: fn() -> Vec<&'static str>,
    /// Whether there is no value besides the choices.
    pub has_all_choices: fn() -> bool,
    pub example: fn() -> Option<toml::Value>,
    /// Reads a value, checks its range and gives it back as it is shown.
    pub normalize: fn(&OptionDef, &RawOptionValue) -> Result<toml::Value, String>,
}

/// A TOML table: its path and its options.
#[derive(Debug)]
pub struct Section {
    pub path: KeyPattern,
    pub doc: &'static [&'static str],
    pub options: &'static [OptionDef],
}

impl Kind {
    pub const fn of<T: OptionValue>() -> Kind {
        Kind {
            is_secret: T::IS_SECRET,
            type_name: T::type_name,
            choices: T::choices,
            has_all_choices: T::has_all_choices,
            example: T::example,
            normalize: |def, raw| read::<T>(def, raw).map(|value| value.to_toml()),
        }
    }
}

impl OptionDef {
    /// True for the entries of a table whose keys are free.
    pub fn is_map_entry(&self) -> bool {
        self.name.starts_with('<')
    }
}

/// The value of an option, or what to tell the person who typed it.
pub fn read<T: OptionValue>(def: &OptionDef, raw: &RawOptionValue) -> Result<T, String> {
    let value = T::from_raw(raw).map_err(|reject| rejection_message::<T>(def, raw, &reject))?;
    if is_in_range(def, &value) {
        Ok(value)
    } else {
        Err(rejection_message::<T>(def, raw, &Reject::Mismatch))
    }
}

/// The default of an option. Every default of the table is read in a test.
pub fn default_of<T: OptionValue>(def: &OptionDef) -> T {
    T::from_text(def.default).unwrap_or_else(|_| panic!("the default of `{}` is not valid", def.name))
}

fn is_in_range<T: OptionValue>(def: &OptionDef, value: &T) -> bool {
    let Some((min, max)) = def.range else { return true };
    let bound = |text| T::from_text(text).unwrap_or_else(|_| panic!("the range of `{}` is not valid", def.name));
    value.is_within(&bound(min), &bound(max))
}

fn rejection_message<T: OptionValue>(def: &OptionDef, raw: &RawOptionValue, reject: &Reject) -> String {
    let found = if T::IS_SECRET {
        "a value that it cannot be".into()
    } else {
        describe(raw)
    };
    let range = def
        .range
        .map(|(min, max)| format!(", from {min} to {max}"))
        .unwrap_or_default();
    let reason = match reject {
        Reject::WithReason(why) => format!(" ({why})"),
        Reject::Mismatch => String::new(),
    };
    format!("found {found}, expected {}{range}{reason}", T::expected())
}

/// ```text
/// section! {
///     /// What the section is about.
///     pub struct Name at [Fixed("name")] {
///         /// What the option does.
///         live option: Type = "default" ["min", "max"] in "unit";
///     }
/// }
/// ```
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident at [$($segment:expr),+] {
            $(
                $(#[doc = $doc:literal])+
                $apply:ident $field:ident : $type:ty = $default:literal $([$min:literal, $max:literal])? $(in $unit:literal)? ;
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl $name {
            pub const SECTION: $crate::config::option::Section = $crate::config::option::Section {
                path: &[$($segment),+],
                doc: &[$($about),+],
                options: &[$($crate::config::option::OptionDef {
                    name: stringify!($field),
                    doc: &[$($doc),+],
                    default: $default,
                    range: $crate::config::option::section!(@range $($min, $max)?),
                    unit: $crate::config::option::section!(@unit $($unit)?),
                    apply: $crate::config::option::section!(@apply $apply),
                    kind: $crate::config::option::Kind::of::<$type>(),
                }),*],
            };

            /// Reads the values of the section at `path`. Errors are recorded in `resolver`, and the default is used.
            pub fn resolve(resolver: &mut $crate::config::resolve::Resolver<'_>, path: &[&str]) -> $name {
                let mut options = Self::SECTION.options.iter();
                $(let $field = {
                    let def = options.next().expect("the table was made from the same list");
                    resolver.take::<$type>(path, def)
                };)*
                $name { $($field),* }
            }
        }
    };
    (@range) => { None };
    (@range $min:literal, $max:literal) => { Some(($min, $max)) };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
    (@apply live) => { $crate::config::option::Apply::Live };
    (@apply restart) => { $crate::config::option::Apply::Restart };
}
pub(crate) use section;
