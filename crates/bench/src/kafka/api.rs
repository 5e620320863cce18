//! Connector, action and rule of a run, made and removed over tidewire's API.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::http::{Endpoint, Request};
use crate::scenario::ToKafka;

/// Who may change definitions, and where.
#[derive(Clone, Debug)]
pub struct Login {
    pub endpoint: Endpoint,
    pub user: String,
    pub password: String,
}

/// What was made for a run.
pub struct Definitions {
    api: Api,
    name: String,
}

struct Api {
    endpoint: Endpoint,
    token: Option<String>,
}

impl Definitions {
    pub fn make(login: &Login, to: &ToKafka, bootstrap_hosts: &str, run: u16) -> Result<Definitions, String> {
        let made = Definitions {
            api: Api::log_in(login)?,
            name: format!("bench-{run:04x}"),
        };
        let result = made.make_all(to, bootstrap_hosts);
        if result.is_err() {
            made.remove();
        }
        result.map(|()| made)
    }

    fn make_all(&self, to: &ToKafka, bootstrap_hosts: &str) -> Result<(), String> {
        let name = &self.name;
        let connector = json!({"type": "kafka", "name": name, "config": {"bootstrap_hosts": bootstrap_hosts}});
        let action = json!({
            "type": "kafka", "name": name, "connector": name,
            "parameters": {"kafka_topic": to.kafka_topic, "key": "${clientid}", "value": "${payload}"},
        });
        let rule = json!({"id": name, "sql": to.sql, "actions": [format!("kafka:{name}")]});
        for (kind, definition) in [("connectors", connector), ("actions", action), ("rules", rule)] {
            self.api.ask("POST", &format!("/api/v1/{kind}"), Some(&definition))?;
        }
        Ok(())
    }

    /// What the action says of itself; empty if it says nothing.
    pub fn metrics(&self) -> BTreeMap<String, u64> {
        let view = self
            .api
            .ask("GET", &format!("/api/v1/actions/kafka:{}", self.name), None);
        let metrics = view.ok().and_then(|view| view["metrics"].as_object().cloned());
        let numbers = metrics.into_iter().flatten();
        numbers
            .filter_map(|(name, value)| Some((name, value.as_u64()?)))
            .collect()
    }

    /// What is not there any more is none the worse.
    pub fn remove(&self) {
        let name = &self.name;
        for path in [
            format!("rules/{name}"),
            format!("actions/kafka:{name}"),
            format!("connectors/{name}"),
        ] {
            let _ = self.api.ask("DELETE", &format!("/api/v1/{path}"), None);
        }
    }

    pub fn left_over(&self) -> String {
        let name = &self.name;
        format!("rule {name}, action kafka:{name} and connector {name} are left in the broker: messages wait there")
    }
}

impl Api {
    fn log_in(login: &Login) -> Result<Api, String> {
        let mut api = Api {
            endpoint: login.endpoint.clone(),
            token: None,
        };
        let body = json!({"user": login.user, "password": login.password});
        let answer = api.ask("POST", "/api/v1/login", Some(&body))?;
        let token = answer["token"].as_str().ok_or("the API's login gives no token")?;
        api.token = Some(token.to_owned());
        Ok(api)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string);
        let request = Request {
            method,
            accept: "application/json",
            token: self.token.as_deref(),
            body: body.as_deref(),
        };
        let place = format!("http://{}{path}", self.endpoint.authority());
        let answer = self.endpoint.ask(path, &request);
        let answer = answer.map_err(|error| format!("{place}: {error}"))?;
        let answer = answer.map_err(|got| format!("{place}: got {got}"))?;
        match answer.status {
            200..300 => Ok(serde_json::from_str(&answer.body).unwrap_or(Value::Null)),
            _ => Err(format!("{method} {place}: {}: {}", answer.status_line, answer.body)),
        }
    }
}
