//! The connector, action and rule of a run: created and removed over tidewire's API.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::http::HttpEndpoint;
use crate::scenario::ToKafka;

/// The login of a user with permission to change definitions, and the API's address.
#[derive(Clone, Debug)]
pub struct BrokerLogin {
    pub endpoint: HttpEndpoint,
    pub user: String,
    pub password: String,
}

/// The definitions that were created for a run.
pub struct RunDefinitions {
    api: DefinitionsApi,
    name: String,
}

struct DefinitionsApi {
    endpoint: HttpEndpoint,
    token: Option<String>,
}

impl RunDefinitions {
    pub fn make(login: &BrokerLogin, to: &ToKafka, bootstrap_hosts: &str, run: u16) -> Result<RunDefinitions, String> {
        let made = RunDefinitions {
            api: DefinitionsApi::log_in(login)?,
            name: format!("bench-{run:04x}"),
        };
        let result = made.create_all(to, bootstrap_hosts);
        if result.is_err() {
            made.remove();
        }
        result.map(|()| made)
    }

    fn create_all(&self, to: &ToKafka, bootstrap_hosts: &str) -> Result<(), String> {
        let name = &self.name;
        let connector = json!({"type": "kafka", "name": name, "config": {"bootstrap_hosts": bootstrap_hosts}});
        let action = json!({
            "type": "kafka", "name": name, "connector": name,
            "parameters": {"kafka_topic": to.kafka_topic, "key": "${clientid}", "value": "${payload}"},
        });
        let rule = json!({"id": name, "sql": to.sql, "actions": [format!("kafka:{name}")]});
        for (kind, definition) in [("connectors", connector), ("actions", action), ("rules", rule)] {
            self.api
                .send_request("POST", &format!("/api/v1/{kind}"), Some(&definition))?;
        }
        Ok(())
    }

    /// Reads the counters of the action; empty if that fails.
    pub fn metrics(&self) -> BTreeMap<String, u64> {
        let view = self
            .api
            .send_request("GET", &format!("/api/v1/actions/kafka:{}", self.name), None);
        let metrics = view.ok().and_then(|view| view["metrics"].as_object().cloned());
        let numbers = metrics.into_iter().flatten();
        numbers
            .filter_map(|(name, value)| Some((name, value.as_u64()?)))
            .collect()
    }

    /// Removes the definitions. Errors are ignored: a missing definition needs no removal.
    pub fn remove(&self) {
        let name = &self.name;
        for path in [
            format!("rules/{name}"),
            format!("actions/kafka:{name}"),
            format!("connectors/{name}"),
        ] {
            let _ = self.api.send_request("DELETE", &format!("/api/v1/{path}"), None);
        }
    }

    /// Describes the definitions, for a run whose messages have not all arrived in Kafka.
    pub fn describe(&self) -> String {
        let name = &self.name;
        format!(
            "rule {name}, action kafka:{name} and connector {name} remain in the broker, because messages wait in the action"
        )
    }
}

impl DefinitionsApi {
    fn log_in(login: &BrokerLogin) -> Result<DefinitionsApi, String> {
        let mut api = DefinitionsApi {
            endpoint: login.endpoint.clone(),
            token: None,
        };
        let body = json!({"user": login.user, "password": login.password});
        let answer = api.send_request("POST", "/api/v1/login", Some(&body))?;
        let token = answer["token"].as_str().ok_or("the API's login gives no token")?;
        api.token = Some(token.to_owned());
        Ok(api)
    }

    fn send_request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        self.endpoint.call(method, path, self.token.as_deref(), body)
    }
}
