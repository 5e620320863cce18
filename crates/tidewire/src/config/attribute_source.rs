//! The expression of an attribute in `access.client_attrs`.

use auth::AttributeExpression;

use super::value::{OptionValue, Reject};

/// An expression such as `nth(1, tokens(clientid, '-'))`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeSource(pub AttributeExpression);

impl OptionValue for AttributeSource {
    fn type_name() -> String {
        "expression".into()
    }

    fn expected() -> String {
        "an expression, such as \"cn\" or \"nth(1, tokens(clientid, '-'))\"".into()
    }

    fn example() -> Option<toml::Value> {
        Some(toml::Value::String("nth(1, tokens(clientid, '-'))".into()))
    }

    fn from_text(text: &str) -> Result<AttributeSource, Reject> {
        let parsed = AttributeExpression::parse(text);
        parsed
            .map(AttributeSource)
            .map_err(|error| Reject::WithReason(error.to_string()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.0.text().to_owned())
    }
}
