//! A node with the device platform and ThingsBoard's demo users, and requests with their tokens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ::thingsboard::{AccessOptions, PlatformAccess};
use api::DevicePlatform;
use devices::{Devices, DevicesOptions};
use serde_json::{Value, json};

use super::node::Node;
use super::web::{self, Answer};

pub const SYSADMIN: &str = "sysadmin@thingsboard.org";
pub const TENANT: &str = "tenant@thingsboard.org";
pub const CUSTOMER: &str = "customer@thingsboard.org";

pub struct Server {
    pub node: Node,
    pub devices: Arc<Devices>,
    tokens: RefCell<HashMap<String, String>>,
    pub data_dir: PathBuf,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(DevicesOptions::default())
    }

    pub fn start_with(options: DevicesOptions) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let data_dir = std::env::temp_dir().join(format!("tidewire-things-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&data_dir);
        fs::create_dir_all(&data_dir).unwrap();
        let devices = Devices::open(&data_dir, options).unwrap();
        let demo = devices.entities().create_demo(now_ms()).unwrap().unwrap();
        let chain = demo.root_chain.id.unwrap();
        devices.platform().reload_chain(chain, now_ms()).unwrap();
        let access = Arc::new(PlatformAccess::open(devices.clone(), &data_dir, AccessOptions::default()).unwrap());
        let node = Node::start_with(1, |config| {
            config.device_platform = Some(DevicePlatform::new(devices.clone(), access));
        });
        Server {
            node,
            devices,
            tokens: RefCell::default(),
            data_dir,
        }
    }

    pub fn login(&self, user: &str, password: &str) -> Answer {
        let body = json!({"username": user, "password": password});
        self.send("POST", "/api/auth/login", None, &body.to_string())
    }

    /// Returns the token of a demo user.
    pub fn token(&self, user: &str) -> String {
        if let Some(token) = self.tokens.borrow().get(user) {
            return token.clone();
        }
        let password = user.split_once('@').unwrap().0;
        let answer = self.login(user, password).ok().json();
        let token = answer["token"].as_str().unwrap().to_owned();
        self.tokens.borrow_mut().insert(user.to_owned(), token.clone());
        token
    }

    pub fn send(&self, method: &str, target: &str, authorization: Option<&str>, body: &str) -> Answer {
        let mut headers: Vec<(&str, &str)> = authorization
            .map(|value| ("X-Authorization", value))
            .into_iter()
            .collect();
        if !body.is_empty() {
            headers.push(("Content-Type", "application/json"));
        }
        web::request(self.node.address, method, target, &headers, body)
    }

    pub fn as_user(&self, user: &str, method: &str, target: &str, body: &Value) -> Answer {
        let authorization = format!("Bearer {}", self.token(user));
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send(method, target, Some(&authorization), &body)
    }

    /// Sends a request as the tenant administrator.
    pub fn get(&self, target: &str) -> Answer {
        self.as_user(TENANT, "GET", target, &Value::Null)
    }

    pub fn post(&self, target: &str, body: Value) -> Answer {
        self.as_user(TENANT, "POST", target, &body)
    }

    pub fn delete(&self, target: &str) -> Answer {
        self.as_user(TENANT, "DELETE", target, &Value::Null)
    }

    /// Creates a device and returns its ID.
    pub fn device(&self, name: &str) -> String {
        let device = self
            .post("/api/device", json!({"name": name, "type": "default"}))
            .ok()
            .json();
        id(&device)
    }

    /// Returns the ID of the only customer of the demo data.
    pub fn customer(&self) -> String {
        id(&self.get("/api/customers?pageSize=10&page=0").ok().json()["data"][0])
    }

    /// Repeats the request until the answer matches: saved values are stored asynchronously.
    #[track_caller]
    pub fn wait_for(&self, target: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::time::Instant::now() < deadline {
            last = self.get(target).ok().json();
            if is_so(&last) {
                return last;
            }
            std::thread::yield_now();
        }
        panic!("{target} is {last}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(api) = self.node.api.take() {
            api.stop(std::time::Duration::from_secs(5));
        }
        self.devices.shut_down();
        let _ = fs::remove_dir_all(&self.data_dir);
    }
}

#[track_caller]
pub fn id(entity: &Value) -> String {
    entity["id"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id in {entity}"))
        .to_owned()
}

/// Asserts that the answer is an error in ThingsBoard's format, and returns its message.
#[track_caller]
pub fn refused(answer: &Answer, status: u16, code: u64) -> String {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.header("content-type"), "application/json");
    let body = answer.json();
    assert_eq!(
        (&body["status"], &body["errorCode"]),
        (&json!(status), &json!(code)),
        "{body}"
    );
    assert!(body["timestamp"].as_u64().unwrap() > 1_500_000_000_000);
    body["message"].as_str().unwrap().to_owned()
}

pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
