//! A build without the interfaces of the device platform.

use web::endpoint::{Operation, Routes};

use crate::app::App;

pub fn operations() -> Vec<Operation> {
    Vec::new()
}

pub fn add_routes(routes: Routes, _: &App) -> Routes {
    routes
}
