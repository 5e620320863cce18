//! Sends invalid input to all operations of a document: a body of the wrong type, an object with each field of the
//! wrong type, and a wrong value of each query parameter. No answer may contain a word of Rust or serde.

use serde_json::{Value, json};

use super::node::Node;
use super::schema::Schemas;
use super::web::Answer;

/// Words that programmers know and users do not.
const RUST: &str = "struct |enum |variant|tuple|sequence|a map|unit |newtype|::|u8|u16|u32|u64|i32|i64|f64|usize";

fn values() -> impl Iterator<Item = Value> {
    let list = json!([[1], "x", null, -5, true, { "x": [1] }]);
    list.as_array().unwrap().clone().into_iter()
}

/// Sends the requests with `send(method, target, body)`. Returns the number of those that are refused as malformed.
#[track_caller]
pub fn answers_contain_no_rust(document: &Value, send: impl Fn(&str, &str, &Value) -> Answer) -> usize {
    let schemas = Schemas { document };
    let (mut refused, mut wrong) = (0, Vec::new());
    let mut check = |method: &str, target: &str, body: &Value| {
        let answer = send(&method.to_uppercase(), target, body);
        // The text of ThingsBoard.
        let text = answer.body.replace("No enum constant ", "");
        if answer.status >= 400 && RUST.split('|').any(|word| text.contains(word)) {
            wrong.push(format!("{method} {target} {body}: {text}"));
        }
        refused += usize::from(matches!(answer.status, 400 | 422));
    };
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            for parameter in parameters.filter(|parameter| method == "get" && parameter["in"] == "query") {
                let name = parameter["name"].as_str().unwrap();
                check(method, &format!("{path}?{name}=x~"), &Value::Null);
            }
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_null() {
                continue;
            }
            let fields = schemas.resolve(schema)["properties"].as_object().into_iter().flatten();
            let fields = fields.flat_map(|(name, _)| values().map(move |value| json!({ name.as_str(): value })));
            values().chain(fields).for_each(|body| check(method, path, &body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    refused
}

#[test]
fn errors_about_input_contain_no_rust() {
    let node = Node::start(1).with_login();
    let document = node.get("/api/openapi.json").ok().json();
    let refused = answers_contain_no_rust(&document, |method, target, body| {
        let body = if method == "GET" {
            String::new()
        } else {
            body.to_string()
        };
        node.request(method, &target.replace(['{', '}', '*'], ""), &body)
    });
    assert!(refused > 300, "{refused}");
    let wrong = node.send("POST", "/api/v1/publish", &json!([1])).problem(400);
    assert_eq!(wrong["detail"], "found a list, expected an object at line 1 column 0");
    let wrong = node
        .send("POST", "/api/v1/publish", &json!({ "topic": 5 }))
        .problem(400);
    assert_eq!(wrong["field"], "topic");
    assert_eq!(wrong["detail"], "found a number, expected a string at line 1 column 10");
}
