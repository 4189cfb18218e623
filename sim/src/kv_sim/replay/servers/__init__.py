"""A trace on several servers behind a router.

=========== ==============================================
``routing`` the names of the ways to route
``routers`` which server gets which request
``fleet``   the servers, and each one's share of the trace
=========== ==============================================
"""
